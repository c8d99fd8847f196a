"""A job that runs while the test does something to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.stress.harness import alive

HERE = Path(__file__).parent
LAUNCHER = Path(sys.executable).with_name("horovodrun")
HOROVODRUN = [sys.executable, str(HERE / "horovodrun.py")]
"""What the tests start in its place."""


class Started:
    """A launcher, `horovodrun` unless another is named, with a script of this folder, or with `-m` and a module. Everything it
    started is killed at the end of the `with` block. python: what the launcher starts. Forks (`Commands.python`) are no children:
    `watch` tells of them."""

    def __init__(
        self,
        log: Path,
        options: Sequence[str],
        script: str,
        *arguments: str | Path,
        launcher: Sequence[str] = (),
        python: Sequence[str] = (sys.executable,),
    ) -> None:
        environ = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "TF_CPP_MIN_LOG_LEVEL": "3"}
        file = script if script == "-m" else HERE / script
        command = [*(launcher or HOROVODRUN), *options, *python, file, *arguments]
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.alive():
            process.kill()
        self.process.kill()
        self.process.wait()

    def watch(self, pid: int) -> None:
        """Counts a process as one of the job's."""
        with suppress(psutil.NoSuchProcess):  # it has ended already
            self._seen.add(psutil.Process(pid))

    @property
    def output(self) -> str:
        return self.log.read_text()

    @property
    def lines(self) -> list[str]:
        """The lines that lms3d itself has printed for the user."""
        return [line for line in self.output.splitlines() if "lms3d:" in line]

    def alive(self) -> list[psutil.Process]:
        """The processes of the job that still run, orphans included."""
        if self.process.poll() is None:
            self._seen |= set(psutil.Process(self.process.pid).children(recursive=True))
        return [one for one in self._seen if alive(one)]

    def left(self, seconds: float = 10) -> list[psutil.Process]:
        """The processes that still run after at most so many seconds: some end a moment after the launcher."""
        deadline = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        """Waits for a condition; AssertionError with the output if the job ends or the time is up before."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.alive()
            assert self.process.poll() is None, f"the job ended with {self.process.returncode}:\n{self.output}"
            assert time.monotonic() < deadline, f"not within {seconds} s:\n{self.output}"
            time.sleep(0.05)
        self.alive()

    def end(self, seconds: float = 120) -> float:
        """Waits for the end. Returns the seconds that it took."""
        started = time.monotonic()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job hangs:\n{self.output}") from None
        return time.monotonic() - started
