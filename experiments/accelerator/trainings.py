"""Parts -> results: each training is a process of its own, saved as it ends, ended when its time is over. No TensorFlow here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from experiments.overhead import bench, parts
from experiments.overhead.bench import Trainer
from experiments.overhead.parts import MIB, Part, Result
from experiments.overhead.process import Child
from lms3d import console
from lms3d.units import format_seconds, format_size

UNANSWERED = ("failed", "out of time")
"""Outcomes after which a training is run again by the next call."""


PATIENCE_SECONDS = 3600.0  # for an answer of a child, where there is no deadline


class OutOfTime(RuntimeError):
    """There was not enough time for a training."""


def _child(part: Part, log: Path, deadline: float) -> Trainer:
    return Child(part, log, PATIENCE_SECONDS, deadline=deadline)


class Trainings:
    """Results by the name of their part, from files or from children.

    deadline: of `time.monotonic`; set for each section. least_seconds: with less left no training is begun. card_bytes: a limit
    above them says nothing. side_by_side: how many at a time, where times do not matter. start: makes the child of a part, with a
    file for its log and a deadline.
    """

    def __init__(
        self,
        folder: Path,
        *,
        least_seconds: float = 0.0,
        card_bytes: int | None = None,
        side_by_side: int = 1,
        start: Callable[[Part, Path, float], Trainer] | None = None,
        say: Callable[[str], None] = console.say,
    ) -> None:
        self.folder, self.least_seconds, self.card_bytes = folder, least_seconds, card_bytes
        self.deadline, self.side_by_side = math.inf, side_by_side
        self._start, self._say = start or _child, say
        self.found: dict[str, Result] = {
            result.part.name: result for result in map(Result.load, sorted((folder / "parts").glob("*.json")))
        }

    def measure_all(self, some: Sequence[Part]) -> list[Result]:
        """The results of some parts; OutOfTime where one has none."""
        if self.side_by_side == 1:
            return [self.measure(part) for part in some]
        with ThreadPoolExecutor(self.side_by_side) as pool:
            return list(pool.map(self.measure, some))

    def measure(self, part: Part) -> Result:
        """The result of a part, known or new. OutOfTime where its time is over before it has one."""
        known = self.found.get(part.name)
        if known is not None and known.outcome not in UNANSWERED:
            return known
        if part.limit_mib is not None and self.card_bytes is not None and part.limit_mib * MIB > self.card_bytes:
            detail = f"the card has {format_size(self.card_bytes)} for TensorFlow"
            self.found[part.name] = Result(part=part, outcome="not possible", detail=detail)
            return self.found[part.name]
        left = self.deadline - time.monotonic()
        if left < self.least_seconds:
            raise OutOfTime(f"{part.title} was not begun: {format_seconds(max(0.0, left))} were left")
        result = self._run(part)
        self._say(f"{part.title}: {bench.describe(result)}")
        if result.outcome == "out of time":
            raise OutOfTime(f"{part.title} was ended after {format_seconds(left)}")
        result.save(self.folder / "parts")
        self.found[part.name] = result
        return result

    def _run(self, part: Part) -> Result:
        started, log = time.monotonic(), self.folder / "logs" / f"{part.name}.txt"
        result = bench.run(part, lambda: self._start(part, log, self.deadline), None)
        return replace(result, wall_seconds=time.monotonic() - started, code=parts.code_digest())
