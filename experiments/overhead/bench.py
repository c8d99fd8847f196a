"""Runs parts: each in a child process, saved as it finishes, within a time limit. No TensorFlow here."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from experiments.overhead import parts
from experiments.overhead.parts import Part, Result
from experiments.overhead.process import Child, ChildFailed
from lms3d import console
from lms3d.units import format_seconds

SIDE_BY_SIDE = 2
"""Parts that are not timed run so many at a time: most of their seconds are tracing, on one core."""

# Guesses for the time limit, of two cores; they are scaled by what the parts so far have taken.
START_SECONDS = {
    parts.LMS: 25.0,
    parts.TFLMS: 35.0,
    parts.PREDICTION: 25.0,
    parts.TORCH_SAVE_ON_CPU: 5.0,
    parts.XLA: 120.0,
    **{name: 90.0 for name, way in parts.TORCH_METHODS.items() if way.mode},
}
USUAL_START_SECONDS = 15.0
STEP_FACTOR = {
    parts.TFLMS: 2.0,
    parts.SWAP_ALL: 2.5,
    parts.RECOMPUTE_ALL: 12.0,
    parts.TORCH: 1.5,
    parts.TORCH_CHECKPOINT: 2.2,
    parts.TORCH_SAVE_ON_CPU: 8.0,
    parts.XLA: 8.0,
}
USUAL_STEP_FACTOR = 1.4
VOXEL_SECONDS = 3.5e-6
LEAST_PATIENCE_SECONDS = 900.0  # a plan that runs out of memory is made again, up to five times
CROWDED_SHARE = 1 / 3
"""Of the machine's memory. A neighbour that holds more leaves none to the system for the swap files of a step as large as its own:
it runs before and after the part then, not beside it."""


class Trainer(Protocol):
    """What the bench needs of a child."""

    ready: dict[str, Any]
    when_measured: Callable[[], object]
    """Called once the child has measured what its plan is made from."""

    def step(self) -> dict[str, Any]: ...
    def finish(self) -> dict[str, Any]: ...
    def kill(self) -> None: ...


class Bench:
    """Results of parts, from files or from children. skipped: what was left out, and why.

    minutes: None is without limit. again: rerun parts that have a result.
    """

    def __init__(
        self,
        folder: Path,
        *,
        minutes: float | None = None,
        again: bool = False,
        start: Callable[[Part, Path, float], Trainer] | None = None,
        say: Callable[[str], None] = console.say,
    ) -> None:
        self.folder, self.again, self._start, self._say = folder, again, start or Child, say
        self.results: dict[str, Result] = {}
        self.skipped: list[str] = []
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._neighbour: tuple[Part, Trainer] | None = None
        self._crowded: dict[Part, bool] = {}  # neighbour -> whether it takes too much memory to stay
        self._alone: dict[Part, tuple[float, ...]] = {}  # neighbour -> seconds of its last steps while nothing else ran
        self._drift = [1.0]

    def measure(self, part: Part) -> Result | None:
        """The result of `part`; None where the time that is left is too short for it."""
        if part.name in self.results:
            return self.results[part.name]
        path = self.folder / "parts" / f"{part.name}.json"
        kept = Result.load(path) if path.exists() and not self.again else None
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

    def measure_all(self, some: Sequence[Part]) -> list[Result]:
        """Parts that are not timed, some at a time; those that there was time for."""
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return [result for result in pool.map(self.measure, some) if result is not None]

    def found(self) -> list[Result]:
        """All results: those of earlier runs in the same folder, too, unless they are to be run again."""
        if self.again:
            return list(self.results.values())
        return [Result.load(path) for path in sorted((self.folder / "parts").glob("*.json"))]

    def skip(self, what: str) -> None:
        """Leave something out, and remember it for the report."""
        self.skipped.append(what)
        self._say(f"skipped: {what}")

    def close(self) -> None:
        """End the neighbour."""
        if self._neighbour is not None:
            self._neighbour[1].kill()
            self._neighbour = None

    def expected_seconds(self, part: Part) -> float:
        """What a part will take, about, if it goes on as before."""
        return self._guess(part) * statistics.median(self._drift[-9:])

    def _guess(self, part: Part) -> float:
        step = VOXEL_SECONDS * part.resolution**3
        known = [r for r in list(self.results.values()) if r.part.baseline() == part.baseline() and r.baseline_seconds]
        if known:
            step = statistics.median(known[-1].baseline_seconds)
        own = step * STEP_FACTOR.get(part.method, USUAL_STEP_FACTOR) * (part.warm_up + part.steps)
        others = step * part.steps if part.timed else 0.0
        start = START_SECONDS.get(part.method, USUAL_START_SECONDS)
        return start + own + others

    def _in_time(self, part: Part) -> bool:
        if self._deadline is None:
            return True
        needed, left = self.expected_seconds(part), max(0.0, self._deadline - time.monotonic())
        if needed <= left:
            return True
        self.skip(f"{part.title} (needs about {format_seconds(needed)}, {format_seconds(left)} left)")
        return False

    def _run(self, part: Part) -> Result:
        started, guess = time.monotonic(), self._guess(part)
        alone = part.timed and self._is_crowded(part)
        neighbour = self._neighbour_of(part) if part.timed and not alone else None
        if alone:
            result = self._between(part)
        else:
            result = run(part, lambda: self._child(part), neighbour)
            if neighbour is not None and result.trained and not result.baseline_seconds:
                self.close()
        result = replace(result, wall_seconds=time.monotonic() - started, code=parts.code_digest())
        if result.trained:
            self._drift.append(result.wall_seconds / guess)
        return result

    def _is_crowded(self, part: Part) -> bool:
        """Whether the neighbour holds too much memory to stay; it is started to find out."""
        if _neighbour_part(part) not in self._crowded:
            self._neighbour_of(part)
        return self._crowded.get(_neighbour_part(part), False)

    def _between(self, part: Part) -> Result:
        """A part that runs alone: its neighbour takes its steps before and after."""
        before = self._steps_alone(part, self._alone.pop(_neighbour_part(part), ()))
        result = run(part, lambda: self._child(part), None)
        if not result.trained:
            self._alone[_neighbour_part(part)] = before
            return result
        after = self._alone[_neighbour_part(part)] = self._steps_alone(part, ())
        both = tuple((a + b) / 2 for a, b in zip(before, after, strict=False))
        return replace(result, baseline_seconds=both[: part.steps]) if len(both) >= part.steps else result

    def _steps_alone(self, part: Part, known: tuple[float, ...]) -> tuple[float, ...]:
        """Seconds of as many steps of the neighbour as the part takes; `known`, where they are enough."""
        if len(known) >= part.steps:
            return known
        neighbour = self._neighbour_of(part)
        seconds: list[float] = []
        with contextlib.suppress(ChildFailed):
            while neighbour is not None and len(seconds) < part.steps:
                seconds.append(float(neighbour.step()["seconds"]))
        self.close()
        return tuple(seconds)

    def _child(self, part: Part, role: str = "") -> Trainer:
        log = self.folder / "logs" / f"{role.replace(' ', '_')}{part.name}.txt"
        patience = max(LEAST_PATIENCE_SECONDS, 4 * self.expected_seconds(part))
        if self._deadline is not None:  # a child that hangs must not hold up the end for long
            patience = min(patience, max(LEAST_PATIENCE_SECONDS / 15, self._deadline - time.monotonic()))
        return self._start(part, log, patience)

    def _neighbour_of(self, part: Part) -> Trainer | None:
        """The process that takes steps without LMS; None where it cannot."""
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


def _neighbour_part(part: Part) -> Part:
    return replace(part.baseline(), warm_up=0, steps=0)


def run(part: Part, start: Callable[[], Trainer], neighbour: Trainer | None) -> Result:
    """Train `part`, a step of `neighbour` before each of its own."""
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
        return Result(part=part, outcome=failure.outcome, detail=failure.detail, report=failure.values)
    every = [*warm, *own]
    peaks = [int(step["peak_bytes"]) for step in every if "peak_bytes" in step]
    return Result(
        part=part,
        outcome="trained" if part.trains else "predicted",
        seconds=tuple(float(step["seconds"]) for step in own),
        baseline_seconds=tuple(others),
        peaks_bytes=tuple(peaks[len(warm) :]),
        peak_bytes=max(peaks, default=None),
        resident_bytes=max((int(step["resident_bytes"]) for step in own), default=None),
        loss=own[-1]["loss"] if own else None,
        recoveries=last.get("recoveries", 0),
        digest=last.get("digest", ""),
        traffic=_means([step["traffic"] for step in own if step.get("traffic")]) or last.get("traffic", {}),
        report=last.get("report", {}),
        profile=last.get("profile", {}),
        machine=last.get("machine", {}),
        workspace_mib=last.get("workspace_mib", ""),
        device=ready.get("device", ""),
        parameters=ready.get("parameters"),
    )


def _profile(part: Part, child: Trainer) -> None:
    """Its profiled steps. What ends it there is no answer to whether it trains."""
    try:
        for _ in range(part.profiled if part.trains else 0):
            child.step()
    except ChildFailed as failure:
        outcome = failure.outcome if failure.outcome == "out of time" else "failed"
        raise ChildFailed(outcome, f"under the profiler: {failure.detail}", failure.values) from failure


def _means(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.mean(step[name] for step in steps) for name in steps[0]} if steps else {}


def describe(result: Result) -> str:
    """One line for the terminal."""
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
