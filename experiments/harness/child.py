"""The parent's side of the talk with a child process. No TensorFlow here.

A child is told at its start what to do, in JSON; it answers in lines of JSON on stdout, and writes all else to its log.
A child that trains follows this protocol:

    child  -> {"ready": ..}                       the model is built
    parent -> step            child -> {"seconds": .., "peak_bytes": .., ..}
    parent -> (end of input)  child -> {"finished": ..}, and it ends
    child  -> {"note": "measured"}  at any time: what its plan is made from has been measured, the device is free
    child  -> {"error": "out of memory" | "does not fit" | "failed", "detail": ..} at any time, and it ends

A hard memory limit is fixed when TensorFlow starts, hence one process for each part. TensorFlow's CPU kernels may crash when a
pool is full: under a limit that, too, is a result, "out of memory".
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lms3d.experiments import ROOT
from lms3d.experiments.harness.methods import TORCH_METHODS
from lms3d.experiments.harness.part import StudyPart

WORKSPACE = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"  # of TensorFlow
_LAST_SECONDS = 60.0  # for a process to end after its last answer: it frees memory and swap files
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
_LAST_LINES, _LAST_CHARACTERS = 5, 600
"""The end of a log that is shown: enough for an import error, still one message."""


class ChildFailed(RuntimeError):
    """A child ended early. outcome: as in `PartResult`, or "out of time". values: its last answer."""

    def __init__(self, outcome: str, detail: str, values: dict[str, Any] | None = None) -> None:
        super().__init__(f"{outcome}: {detail}")
        self.outcome, self.detail, self.values = outcome, detail, values or {}


class Process:
    """A child that is asked in lines and answers in lines of JSON. asked: its task, after the program's words.

    environment: added to that of this process. bind: called in the child before its program starts.
    """

    def __init__(
        self,
        program: Sequence[str],
        asked: Any,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        bind: Callable[[], None] | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log, self.is_late, self.is_killed = log, False, False
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*program, json.dumps(asked)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                preexec_fn=bind,
            )

    def say(self, word: str) -> None:
        """Sends a line to the child. If the child has ended, nothing is sent: the next answer shows its end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(word, file=self.process.stdin, flush=True)

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """The child's next line; None if it has ended. After so many seconds it is killed, and `is_late`."""
        assert self.process.stdout is not None

        def give_up() -> None:
            self.is_late = True
            self.process.kill()

        timer = threading.Timer(min(max(0.0, seconds), threading.TIMEOUT_MAX), give_up)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        values: dict[str, Any] | None = json.loads(line) if line else None
        return values

    def kill(self) -> None:
        """Ends the child, also one that is stopped."""
        self.is_killed = True
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """The child's exit code; it is made to end if it does not by itself."""
        try:
            return self.process.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def of_module(name: str) -> list[str]:
    """The words that run a module as a program."""
    return [sys.executable, "-m", name]


class Child(Process):
    """The process of one part. patience_seconds: for each answer. deadline: of `time.monotonic`, at which the child is ended
    whatever it does: "out of time"."""

    def __init__(
        self,
        part: StudyPart,
        log: Path,
        patience_seconds: float,
        environment: Mapping[str, str] | None = None,
        deadline: float = math.inf,
    ) -> None:
        self.part, self.patience_seconds, self.deadline = part, patience_seconds, deadline
        self.when_measured: Callable[[], object] = lambda: None
        trainer = "torch" if part.method in TORCH_METHODS else "tensorflow"
        # The step without LMS waits beside the others: on a GPU it must not take the whole card.
        growing = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if part.limit_mib is None else {}
        same_bits = {"TF_DETERMINISTIC_OPS": "1"} if part.deterministic else {}
        workspace = {WORKSPACE: str(part.workspace_mib)} if part.workspace_mib else {}
        super().__init__(
            of_module(f"lms3d.experiments.harness.steps_{trainer}"),
            asdict(part),
            log,
            environment={**growing, **same_bits, **workspace, **(environment or {})},
        )
        self.ready = self._answered()

    def step(self) -> dict[str, Any]:
        """The figures of one more training step."""
        self.say("step")
        return self._answered()

    def finish(self) -> dict[str, Any]:
        """What the child found about the whole run; it ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        values = self._answered()
        self.end()
        return values

    def _answered(self) -> dict[str, Any]:
        """The next answer that is no note."""
        while (values := self.answer(min(self.patience_seconds, self.deadline - time.monotonic()))) is not None:
            if "error" in values:
                self.end()
                raise ChildFailed(values["error"], values.get("detail", ""), values)
            if "note" not in values:
                return values
            self.when_measured()
        raise self._ended()

    def _ended(self) -> ChildFailed:
        code = self.end()
        if self.is_late and time.monotonic() >= self.deadline:
            return ChildFailed("out of time", "ended at its deadline")
        if self.is_late:
            return ChildFailed("failed", f"no answer for {self.patience_seconds:.0f} s")
        if self.is_killed:  # by another thread, while this one waited for an answer
            return ChildFailed("out of time", "ended before its answer")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        limited = self.part.limit_mib is not None
        if -code == signal.SIGKILL or (limited and -code in _CRASHES):
            return ChildFailed("out of memory", f"ended by {cause}")
        return ChildFailed("failed", f"ended by {cause}; see its log")


def only_answer(
    module: str, asked: Any, log: Path, seconds: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a child says that answers once and ends. ChildFailed, "out of time" or "failed", with the end of its log."""
    child = Process(of_module(module), asked, log, environment=environment)
    values, code = child.answer(seconds), child.end()
    if values is not None:
        return values
    late = f"no answer for {seconds:.0f} s"
    raise ChildFailed(
        "out of time" if child.is_late else "failed", f"{late if child.is_late else f'exit code {code}'}{_end_of(log)}"
    )


def _end_of(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"; its last lines: {' / '.join(lines[-_LAST_LINES:])[-_LAST_CHARACTERS:] or 'none'}"
