"""Runs commands one after another under the fault shim, each in a fork of a process that has imported what they need (as
`tests.fork_server` does without a shim): half a second, not five.

A line of JSON on stdin is a job: {"module", "arguments", "environment", "output", "strike", "limits"}; the line on stdout that
answers it is the exit code, or minus the signal. Importing TensorFlow starts no thread, so a fork is sound until devices are made.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests import fork_server

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 1800
"""Of one command, on a busy machine; then it hangs, and ends by SIGALRM."""


Strike = tuple[int, float]
"""A signal, and the seconds after which the command gets it."""


class Server:
    """The other side: starts the process, gives it jobs. A context manager."""

    def __init__(self, library: Path, *modules: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FAULTS_")}
        more = {"LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server", str(library), *modules],
            cwd=ROOT, env={**clean, **more}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if self._answer() != "ready":
            raise RuntimeError("the server has not started")

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: Path,
        strike: Strike | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> int:
        """The exit code of `python -m module arguments`, or minus the signal that ended it.

        output: gets its stdout; the same name with .err its stderr.
        limits: of the process, by their names in `resource`.
        """
        assert self._process.stdin is not None
        job = {"module": module, "arguments": list(arguments), "environment": dict(environment), "output": str(output),
               "strike": strike, "limits": dict(limits or {})}  # fmt: skip
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def main(library: str, *modules: str) -> int:
    """The server. In a child it returns the exit code of the command, which ends as every Python does."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.enable()
    gc.freeze()  # as tests.fork_server does: no fork looks at these objects, and so copies their pages
    fork_server.require_one_thread()
    print("ready", flush=True)
    while line := sys.stdin.readline():
        if not (child := os.fork()):
            return _run(library, json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return 0


def _run(library: str, job: dict[str, Any]) -> int:
    os.setsid()
    signal.alarm(MOST_SECONDS)
    streams = (os.devnull, job["output"], job["output"] + ".err")
    files = [os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in streams]
    fork_server.take(files, {**os.environ, **job["environment"]})
    if job["strike"]:
        _strike_later(*job["strike"])
    ctypes.CDLL(library).faults_begin()
    for name, most in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))
    return importlib.import_module(job["module"]).main(job["arguments"])


def _strike_later(number: int, seconds: float) -> None:
    """By a process of its own, which ends with the command."""
    command = os.getpid()
    if os.fork():
        return
    until = time.monotonic() + seconds
    while time.monotonic() < until and os.getppid() == command:
        time.sleep(0.005)
    if os.getppid() == command:
        os.kill(command, number)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
