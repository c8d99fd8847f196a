"""Parts -> results: each training is a process of its own, saved as it ends, ended when its time is over. Several warm up side by
side. No TensorFlow here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from lms3d import console
from lms3d.experiments.accelerator.lockstep import Lockstep
from lms3d.experiments.harness import bench, methods, store
from lms3d.experiments.harness.bench import Trainer
from lms3d.experiments.harness.child import Child
from lms3d.experiments.harness.part import PartResult, StudyPart
from lms3d.experiments.harness.store import StudyStore
from lms3d.units import format_seconds, format_size

UNANSWERED = ("failed", "out of time")
"""Outcomes after which a training is run again by the next call."""

MEASURING = (methods.LMS, methods.COPIED)
"""Methods whose plan needs the costs of single ops, measured on this machine."""
CARD_SHARE = 0.9
"""The share of the card's memory for all trainings of a group: each process takes some 0.5 GiB beside TensorFlow's pool. Not
measured."""

PATIENCE_SECONDS = 3600.0  # for an answer of a child, if there is no deadline


class OutOfTime(RuntimeError):
    """There was not enough time for a training."""


def _child(part: StudyPart, log: Path, deadline: float) -> Trainer:
    return Child(part, log, PATIENCE_SECONDS, deadline=deadline)


class Trainings(StudyStore):
    """Results by the name of their part, from files or from children.

    deadline: of `time.monotonic`; set for each section. least_seconds: with less left no training is begun. card_bytes: the memory
    of the device; a limit above it says nothing. side_by_side: how many warm up at a time, in `lockstep`. need_bytes: about what a
    part takes of the device, so that the parts of a group fit. start: makes the child of a part, with a file for its log and a
    deadline.
    """

    def __init__(
        self,
        folder: Path,
        *,
        least_seconds: float = 0.0,
        card_bytes: int | None = None,
        side_by_side: int = 1,
        need_bytes: Callable[[StudyPart], float] = lambda part: 0.0,
        start: Callable[[StudyPart, Path, float], Trainer] | None = None,
        say: Callable[[str], None] = console.say,
    ) -> None:
        super().__init__(folder, say=say)
        self.least_seconds, self.card_bytes = least_seconds, card_bytes
        self.side_by_side, self._need_bytes, self._start = side_by_side, need_bytes, start or _child
        self.found: dict[str, PartResult] = {result.part.name: result for result in bench.saved(self.parts)}

    def measure_all(self, some: Sequence[StudyPart]) -> list[PartResult]:
        """The results of some parts; the missing ones run in groups. OutOfTime if there was no time for one."""
        known = {part.name: result for part in some if (result := self._known(part)) is not None}
        for group in self._groups([part for part in some if part.name not in known]):
            known |= {result.part.name: result for result in self._in_lockstep(group)}
        return [known[part.name] for part in some]

    def measure(self, part: StudyPart, group: Lockstep | None = None) -> PartResult:
        """The result of a part, known or new. OutOfTime if its time is over before it has one."""
        if (known := self._known(part)) is not None:
            return known
        left = self.seconds_for(part.title)
        result = self._run(part, group or Lockstep([part]))
        self._say(f"{part.title}: {bench.describe(result)}")
        if result.outcome == "out of time":
            raise OutOfTime(f"{part.title} was ended after {format_seconds(left)}")
        result.save(self.parts)
        self.found[part.name] = result
        return result

    def seconds_for(self, what: str) -> float:
        """The seconds that are left; OutOfTime if they are too few to begin anything."""
        left = self.seconds_left()
        if left < self.least_seconds:
            raise OutOfTime(f"{what} was not begun: {format_seconds(left)} were left")
        return left

    def _known(self, part: StudyPart) -> PartResult | None:
        """A result that need not be measured, or cannot be."""
        known = self.found.get(part.name)
        if known is not None and known.outcome not in UNANSWERED:
            return known
        if self.card_bytes is not None and (part.limit_bytes or 0) > self.card_bytes:
            detail = f"the card has {format_size(self.card_bytes)} for TensorFlow"
            self.found[part.name] = PartResult(part=part, outcome="not possible", detail=detail)
            return self.found[part.name]
        return None

    def _groups(self, some: Sequence[StudyPart]) -> list[list[StudyPart]]:
        """The parts in the same order, in groups that are small enough for the device and for the host."""
        groups: list[list[StudyPart]] = []
        room = CARD_SHARE * (self.card_bytes or math.inf)
        for part in some:
            needed = sum(map(self._need_bytes, [*(groups[-1] if groups else []), part]))
            if groups and len(groups[-1]) < self.side_by_side and needed <= room:
                groups[-1].append(part)
            else:
                groups.append([part])
        return groups

    def _in_lockstep(self, some: Sequence[StudyPart]) -> list[PartResult]:
        """The results of a group, each saved as it ends. OutOfTime if the deadline ended one."""
        measuring = [part for part in some if part.method in MEASURING and not part.deterministic]
        first = {
            part.workspace_mib: part for part in reversed(measuring)
        }.values()  # costs differ with cuDNN's workspace
        group = Lockstep(some, first, self.deadline)

        def measured(part: StudyPart) -> PartResult:
            try:
                return self.measure(part, group)
            finally:
                group.leave(part)

        with ThreadPoolExecutor(len(some)) as pool:
            return list(pool.map(measured, some))

    def _run(self, part: StudyPart, group: Lockstep) -> PartResult:
        started, log = time.monotonic(), self.folder / "logs" / f"{part.name}.txt"
        result = bench.run(part, lambda: group.of(self._start(part, log, self.deadline), part), None)
        return replace(result, wall_seconds=time.monotonic() - started, code=store.code_digest())
