"""Runs parts: each in a child process, saved as it finishes, within a time limit. No TensorFlow here."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from lms3d import console
from lms3d.experiments.harness import store
from lms3d.experiments.harness.child import Child, ChildFailed
from lms3d.experiments.harness.part import PartResult, StudyPart
from lms3d.experiments.harness.store import StudyStore
from lms3d.units import format_seconds

LEAST_PATIENCE_SECONDS = 900.0  # a plan that runs out of memory is made again, up to five times
CROWDED_SHARE = 1 / 3
"""A share of the machine's memory. A neighbour that holds more leaves none to the system for the swap files of a step as large as
its own: it then runs before and after the part, not beside it."""


class Trainer(Protocol):
    """What a bench needs of a child."""

    ready: dict[str, Any]
    when_measured: Callable[[], object]
    """Called once the child has measured what its plan is made from."""

    def step(self) -> dict[str, Any]: ...
    def finish(self) -> dict[str, Any]: ...
    def kill(self) -> None: ...


class Bench(StudyStore):
    """Results of parts, from files or from children."""

    def __init__(
        self,
        folder: Path,
        *,
        minutes: float | None = None,
        again: bool = False,
        start: Callable[[StudyPart, Path, float], Trainer] | None = None,
        say: Callable[[str], None] = console.say,
    ) -> None:
        super().__init__(folder, minutes=minutes, again=again, say=say)
        self.results: dict[str, PartResult] = {}
        self._start = start or Child
        self._neighbour: tuple[StudyPart, Trainer] | None = None
        self._crowded: dict[StudyPart, bool] = {}  # neighbour -> whether it takes too much memory to stay
        self._alone: dict[
            StudyPart, tuple[float, ...]
        ] = {}  # neighbour -> seconds of its last steps while nothing else ran

    def measure(self, part: StudyPart) -> PartResult | None:
        """The result of the part; None if the time that is left is too short for it."""
        if part.name in self.results:
            return self.results[part.name]
        path = self.parts / f"{part.name}.json"
        kept = PartResult.load(path) if path.exists() and not self.again else None
        if kept is not None and kept.outcome != "failed":
            result = kept
        elif not self._in_time(part):
            return None
        else:
            result = self._run(part)
            result.save(path.parent)
        self.results[part.name] = result
        self._say(f"{part.title}: {describe(result)}")
        return result

    def found(self) -> list[PartResult]:
        """All results, including earlier runs' in the same folder unless they are to be run again."""
        return list(self.results.values()) if self.again else saved(self.parts)

    def close(self) -> None:
        """Ends the neighbour."""
        if self._neighbour is not None:
            self._neighbour[1].kill()
            self._neighbour = None

    def expected_seconds(self, part: StudyPart) -> float:
        """About what a part will take: the longest by its method at its size so far, else the median at its size; 0 if none is
        known."""
        size = (part.model, part.resolution, part.timed)
        alike = [r for r in list(self.results.values()) if (r.part.model, r.part.resolution, r.part.timed) == size]
        same = [r.wall_seconds for r in alike if r.part.method == part.method]
        return max(same) if same else statistics.median([r.wall_seconds for r in alike] or [0.0])

    def _in_time(self, part: StudyPart) -> bool:
        if math.isinf(self.deadline):
            return True
        needed, left = self.expected_seconds(part), self.seconds_left()
        if not (enough := 0 < left >= needed):
            self.skip(f"{part.title} (needs about {format_seconds(needed)}, {format_seconds(left)} left)")
        return enough

    def _run(self, part: StudyPart) -> PartResult:
        started = time.monotonic()
        alone = part.timed and self._is_crowded(part)
        neighbour = self._neighbour_of(part) if part.timed and not alone else None
        if alone:
            result = self._between(part)
        else:
            result = run(part, lambda: self._child(part), neighbour)
            if neighbour is not None and result.trained and not result.baseline_seconds:
                self.close()
        return replace(result, wall_seconds=time.monotonic() - started, code=store.code_digest())

    def _is_crowded(self, part: StudyPart) -> bool:
        """Whether the neighbour holds too much memory to stay; it is started to find out."""
        if _neighbour_part(part) not in self._crowded:
            self._neighbour_of(part)
        return self._crowded.get(_neighbour_part(part), False)

    def _between(self, part: StudyPart) -> PartResult:
        """The result of a part that runs alone: its neighbour takes its steps before and after."""
        before = self._steps_alone(part, self._alone.pop(_neighbour_part(part), ()))
        result = run(part, lambda: self._child(part), None)
        if not result.trained:
            self._alone[_neighbour_part(part)] = before
            return result
        after = self._alone[_neighbour_part(part)] = self._steps_alone(part, ())
        both = tuple((a + b) / 2 for a, b in zip(before, after, strict=False))
        return replace(result, baseline_seconds=both[: part.steps]) if len(both) >= part.steps else result

    def _steps_alone(self, part: StudyPart, known: tuple[float, ...]) -> tuple[float, ...]:
        """The seconds of as many steps of the neighbour as the part takes; `known`, if they are enough."""
        if len(known) >= part.steps:
            return known
        neighbour = self._neighbour_of(part)
        seconds: list[float] = []
        with contextlib.suppress(ChildFailed):
            while neighbour is not None and len(seconds) < part.steps:
                seconds.append(float(neighbour.step()["seconds"]))
        self.close()
        return tuple(seconds)

    def _child(self, part: StudyPart, role: str = "") -> Trainer:
        log = self.folder / "logs" / f"{role.replace(' ', '_')}{part.name}.txt"
        patience = max(LEAST_PATIENCE_SECONDS, 4 * self.expected_seconds(part))
        # A child that hangs must not hold up the end for long.
        return self._start(part, log, min(patience, max(LEAST_PATIENCE_SECONDS / 15, self.seconds_left())))

    def _neighbour_of(self, part: StudyPart) -> Trainer | None:
        """The process that takes steps without LMS; None if it cannot."""
        wanted = _neighbour_part(part)
        if self._neighbour is not None and self._neighbour[0] == wanted:
            return self._neighbour[1]
        self.close()
        try:
            child = self._child(wanted, "neighbour of ")
            child.step()
            resident_bytes = child.step()["resident_bytes"]
        except ChildFailed as failure:
            self._say(f"no neighbour to compare with at {part.resolution}³: {failure}")
            return None
        self._neighbour = (wanted, child)
        self._crowded[wanted] = resident_bytes > CROWDED_SHARE * psutil.virtual_memory().total
        return child


def _neighbour_part(part: StudyPart) -> StudyPart:
    return replace(part.baseline(), warm_up=0, steps=0)


def saved(folder: Path) -> list[PartResult]:
    """The results in a folder of parts, by name."""
    return [PartResult.load(path) for path in sorted(folder.glob("*.json"))]


def run(part: StudyPart, start: Callable[[], Trainer], neighbour: Trainer | None) -> PartResult:
    """The result of training the part, with a step of the neighbour before each of its own."""
    own: list[dict[str, Any]] = []
    others: list[float] = []
    ready: dict[str, Any] = {}
    child: Trainer | None = None
    try:
        child = start()
        ready = child.ready
        warm = [child.step() for _ in range(part.warm_up)] if part.trains else []
        for _ in range(part.steps if part.trains else 0):
            if neighbour is not None:
                try:
                    others.append(float(neighbour.step()["seconds"]))
                except ChildFailed:  # no fault of this part's: it goes on without a ratio
                    neighbour, others = None, []
            own.append(child.step())
        _profile(part, child)
        last = child.finish()
    except ChildFailed as failure:
        if child is not None:
            child.kill()
        return PartResult(part=part, outcome=failure.outcome, detail=failure.detail, report=failure.values)
    result = _result(part, warm, own, last)
    return replace(
        result, baseline_seconds=tuple(others), device=ready.get("device", ""), parameters=ready.get("parameters")
    )


def _result(
    part: StudyPart, warm: Sequence[dict[str, Any]], own: Sequence[dict[str, Any]], last: dict[str, Any]
) -> PartResult:  # fmt: skip
    """The figures of the warm-up, of the steps after it, and of the whole run."""
    peaks = [int(step["peak_bytes"]) for step in (*warm, *own) if "peak_bytes" in step]
    others = {
        name: last[name] for name in ("recoveries", "digest", "report", "profile", "machine", "workspace_mib") if name in last
    }  # fmt: skip
    return PartResult(
        part=part,
        outcome="trained" if part.trains else "predicted",
        seconds=tuple(float(step["seconds"]) for step in own),
        first_seconds=next((float(step["seconds"]) for step in (*warm, *own)), None),
        peaks_bytes=tuple(peaks[len(warm) :]),
        peak_bytes=max(peaks, default=None),
        resident_bytes=max((int(step["resident_bytes"]) for step in own), default=None),
        loss=own[-1]["loss"] if own else None,
        traffic=means([step["traffic"] for step in own if step.get("traffic")]) or last.get("traffic", {}),
        **others,
    )


def _profile(part: StudyPart, child: Trainer) -> None:
    """Takes the profiled steps. Whatever ends them does not say whether the part trains."""
    try:
        for _ in range(part.profiled if part.trains else 0):
            child.step()
    except ChildFailed as failure:
        outcome = failure.outcome if failure.outcome == "out of time" else "failed"
        raise ChildFailed(outcome, f"under the profiler: {failure.detail}", failure.values) from failure


def means(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each counter that every step has."""
    return {name: statistics.mean(step[name] for step in steps) for name in steps[0]} if steps else {}


def describe(result: PartResult) -> str:
    """The result in one line, for the terminal."""
    if result.outcome == "predicted":
        return "predicted"
    if not result.trained:
        return f"{result.outcome} ({result.detail[:120]})"
    words = []
    if result.step_seconds is not None:
        words.append(f"{format_seconds(result.step_seconds)} a step")
    if result.ratio is not None:
        words.append(f"{result.ratio:.2f} x no LMS")
    if result.recoveries:
        words.append(f"{result.recoveries} recoveries")
    return ", ".join(["trained", *words])
