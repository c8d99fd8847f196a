"""The parent's side of the protocol with a child process that trains. No TensorFlow here.

    child  -> {"ready": ..}                     once the model is built
    parent -> step          child -> {"seconds": .., "peak_bytes": .., ..}
    parent -> (end of input)  child -> {"finished": ..}, and it ends
    child  -> {"note": "measured"}  at any time: what its plan is made from has been measured, the device is free
    child  -> {"error": "out of memory" | "does not fit" | "failed", "detail": ..} at any time, and it ends

A hard memory limit is fixed when TensorFlow starts, hence one process per part. TensorFlow's CPU kernels may crash where a
pool is full: under a limit that, too, is a result, "out of memory".
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.overhead.parts import TORCH_METHODS, Part

ROOT = Path(__file__).parents[2]
WORKSPACE = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"  # of TensorFlow
_LAST_SECONDS = 60.0  # for a process to end after its last answer: it frees memory and swap files
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)


class ChildFailed(RuntimeError):
    """A child ended early. `outcome` as in `Result`, or "out of time"; `values`: its last answer."""

    def __init__(self, outcome: str, detail: str, values: dict[str, Any] | None = None) -> None:
        super().__init__(f"{outcome}: {detail}")
        self.outcome, self.detail, self.values = outcome, detail, values or {}


class Child:
    """One part's process. `log`: file for what it writes to stderr; `patience_seconds`: for each answer; `environment`: besides
    this process's own; `deadline`: of `time.monotonic`, at which it is ended whatever it does: "out of time"."""

    def __init__(
        self,
        part: Part,
        log: Path,
        patience_seconds: float,
        environment: Mapping[str, str] | None = None,
        deadline: float = math.inf,
    ) -> None:
        self.part, self.patience_seconds, self.deadline = part, patience_seconds, deadline
        self.when_measured: Callable[[], object] = lambda: None
        module = "steps_torch" if part.method in TORCH_METHODS else "steps_tensorflow"
        log.parent.mkdir(parents=True, exist_ok=True)
        # The step without LMS waits beside the others: on a GPU it must not take the whole card.
        growing = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if part.limit_mib is None else {}
        same_bits = {"TF_DETERMINISTIC_OPS": "1"} if part.deterministic else {}
        workspace = {WORKSPACE: str(part.workspace_mib)} if part.workspace_mib else {}
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"experiments.overhead.{module}", json.dumps(asdict(part))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env={**os.environ, **growing, **same_bits, **workspace, **(environment or {})},
            )
        self.ready = self._answer()

    def step(self) -> dict[str, Any]:
        """Run one training step; its figures."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("step\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: its last answer says why
        return self._answer()

    def finish(self) -> dict[str, Any]:
        """Let it end; what it found about the whole run."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        values = self._answer()
        self._end()
        return values

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _end(self) -> int:
        """Its exit code; it is made to end if it does not by itself."""
        try:
            return self.process.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _answer(self) -> dict[str, Any]:
        late, left = threading.Event(), self.deadline - time.monotonic()

        def give_up() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(max(0.0, min(self.patience_seconds, left)), give_up)
        timer.start()
        try:
            values = self._next_values()
        finally:
            timer.cancel()
        if values is None:
            raise self._ended(late.is_set())
        if "error" in values:
            self._end()
            raise ChildFailed(values["error"], values.get("detail", ""), values)
        return values

    def _next_values(self) -> dict[str, Any] | None:
        """The next line that is no note; None at the end."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            values: dict[str, Any] = json.loads(line)
            if "note" not in values:
                return values
            self.when_measured()
        return None

    def _ended(self, late: bool) -> ChildFailed:
        code = self._end()
        if late and time.monotonic() >= self.deadline:
            return ChildFailed("out of time", "ended at its deadline")
        if late:
            return ChildFailed("failed", f"no answer for {self.patience_seconds:.0f} s")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        limited = self.part.limit_mib is not None
        if -code == signal.SIGKILL or (limited and -code in _CRASHES):
            return ChildFailed("out of memory", f"ended by {cause}")
        return ChildFailed("failed", f"ended by {cause}; see its log")
