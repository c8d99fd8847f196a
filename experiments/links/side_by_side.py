"""Several trainings at once, each a process bound to a core, that begin an epoch together. No TensorFlow here."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.harness.bench import Trainer, means
from experiments.harness.child import Child, ChildFailed
from experiments.harness.part import Part


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The seconds of a process's epoch, and the means of what its link counted in a step."""

    seconds: float
    traffic: dict[str, float]


class Group:
    """Processes of one part: each takes its warm-up, waits for the others, and takes the steps of an epoch.

    A process that is done goes on until all are, so that no epoch ends on an emptier machine. ChildFailed if one fails; "out of
    time" at `deadline`, of `time.monotonic`.
    """

    def __init__(
        self, part: Part, number: int, folder: Path, *, patience_seconds: float, environment: Mapping[str, str],
        deadline: float = math.inf, start: Callable[..., Trainer] | None = None,
    ) -> None:  # fmt: skip
        self.part, self.number, self.folder = part, number, folder
        self._patience, self._environment, self._start = patience_seconds, environment, start or Child
        self._deadline = deadline
        self._together = threading.Barrier(number)
        self._working, self._guard = number, threading.Lock()

    def run(self) -> list[Epoch]:
        """The epoch of each process."""
        with ThreadPoolExecutor(self.number) as pool:
            runs = [pool.submit(self._process, number) for number in range(self.number)]
        errors = [error for run in runs if (error := run.exception()) is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):  # that one only heard of another's failure
                raise error
        if errors:
            outcome = "failed" if time.monotonic() < self._deadline else "out of time"
            raise ChildFailed(outcome, f"the {self.number} processes were not ready together")
        return [run.result() for run in runs]

    def _process(self, number: int) -> Epoch:
        bind(number)
        child: Trainer | None = None
        try:
            log = self.folder / f"{self.part.method.replace(' ', '_')}-{self.number}-{number}.txt"
            child = self._start(self.part, log, self._patience, self._environment, self._deadline)
            for _ in range(self.part.warm_up):
                child.step()
            self._together.wait(max(0.0, min(self._patience, self._deadline - time.monotonic())))
            return self._epoch(child)
        except BaseException:
            self._together.abort()
            raise
        finally:
            with self._guard:
                self._working = 0 if self._together.broken else self._working
            if child is not None:
                with suppress(ChildFailed, OSError):
                    child.finish()
                child.kill()

    def _epoch(self, child: Trainer) -> Epoch:
        began = time.monotonic()
        steps = [child.step() for _ in range(self.part.steps)]
        seconds = time.monotonic() - began
        with self._guard:
            self._working -= 1
        while self._working > 0:
            child.step()
        return Epoch(seconds=seconds, traffic=means([step.get("traffic", {}) for step in steps]))


def bind(number: int) -> None:
    """Binds this thread, and the process that it will start, to one core; processes share cores if there are too few."""
    cores = sorted(os.sched_getaffinity(os.getpid()))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
