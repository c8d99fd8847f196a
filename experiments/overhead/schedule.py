"""Which parts, in which order: what matters most comes first, so that a short time gives a useful result. No TensorFlow here."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lms3d.experiments.harness import methods
from lms3d.experiments.harness.bench import Bench
from lms3d.experiments.harness.part import MIB, StudyPart

SHARES = (0.50, 0.35)
"""The shares of the smallest limit without LMS at which steps are timed."""
MORE_SHARES = (0.75, 0.42, 0.30, 0.60)
TOLERANCE = 0.025
MOST_RUNS = 10

GROUPS = ("times", "limits", "tries", "others", "torch", "curve")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to measure. limits_mib: extra hard limits; others follow from the smallest ones.

    copied: also LMS that copies swapped tensors back, as it always does to a GPU.
    """

    model: str
    resolutions: Sequence[int]
    limits_mib: Sequence[int] = ()
    steps: int = 5
    copied: bool = True
    groups: Sequence[str] = GROUPS


def everything(bench: Bench, wanted: Wanted) -> None:
    """Measures all parts, the most important first."""
    first, *others = [PartsOfSize(bench, wanted, resolution) for resolution in wanted.resolutions]
    rounds: list[tuple[str, Callable[[], None]]] = [
        *((group, getattr(first, group)) for group in ("times", "limits", "tries", "others", "torch")),
        *((group, getattr(place, group)) for place in others for group in ("times", "limits", "tries")),
        ("curve", first.curve),
        *((group, getattr(place, group)) for place in others for group in ("others", "torch", "curve")),
    ]
    for group, work in rounds:
        if group in wanted.groups:
            work()


class PartsOfSize:
    """The parts of one model at one resolution."""

    def __init__(self, bench: Bench, wanted: Wanted, resolution: int) -> None:
        self.bench, self.wanted, self.resolution = bench, wanted, resolution

    def part(self, method: str, limit_mib: int | None = None, *, steps: int | None = None) -> StudyPart:
        """A timed part. LMS may try another plan after its first four steps, hence more steps before the measured ones."""
        return StudyPart(
            method=method, model=self.wanted.model, resolution=self.resolution, limit_mib=limit_mib,
            warm_up=5 if method in (methods.LMS, methods.COPIED, methods.TFLMS) else 1, steps=steps or self.wanted.steps,
        )  # fmt: skip

    @cached_property
    def prediction(self) -> dict[str, Any] | None:
        """The figures of the report on the step without LMS; None if there was no time."""
        result = self.bench.measure(self._untimed(methods.PREDICTION, None, 1))
        return result.report if result is not None and result.outcome == "predicted" else None

    @cached_property
    def without_mib(self) -> int | None:
        """The smallest limit that trains without LMS."""
        if self.prediction is None:
            return None
        peak, limit = (_mib(self.prediction[name]) for name in ("unedited_peak_bytes", "unedited_limit_bytes"))
        return smallest(lambda limit: self._trains(methods.NONE, limit, steps=2), limit, min(peak, int(limit / 1.1)))

    @cached_property
    def with_mib(self) -> int | None:
        """The smallest limit that trains with LMS."""
        if self.prediction is None:
            return None
        floor = _mib(self.prediction["floor_bytes"])
        return smallest(lambda limit: self._trains(methods.LMS, limit, steps=4), floor, int(floor / 1.3))

    @cached_property
    def copied_mib(self) -> int | None:
        """The smallest limit that trains with LMS that copies back."""
        if self.with_mib is None:
            return None
        return smallest(
            lambda limit: self._trains(methods.COPIED, limit, steps=4), int(1.4 * self.with_mib), self.with_mib
        )

    def limits(self) -> None:
        """Searches the smallest limits. Nothing is timed, so that the machine may have other work."""
        found = [(self.without_mib, "without LMS"), (self.with_mib, "with LMS")]
        if self.wanted.copied:
            found.append((self.copied_mib, "with LMS that copies back"))
        for limit, what in found:
            if limit is None:
                self.bench.skip(f"{self.wanted.model} {self.resolution}³: no limit was found to train {what}")

    def times(self) -> None:
        """Measures step times at the limits that were asked for, and at SHARES, for which the smallest limit without LMS is
        searched."""
        self.bench.measure(self.part(methods.NONE))
        for limit in self.wanted.limits_mib:
            self._trains(methods.NONE, limit, steps=2)
            self.bench.measure(self.part(methods.LMS, limit))
        self._at_shares(methods.LMS, SHARES)

    def tries(self) -> None:
        """Tries whether the limits that were asked for are enough. Nothing is timed."""
        for limit in self.wanted.limits_mib:
            for method in (methods.LMS, *([methods.COPIED] if self.wanted.copied else [])):
                self._trains(method, limit, steps=3)

    def others(self) -> None:
        """Measures what else saves memory in TensorFlow, at the same limits or with the memory that it takes."""
        if self.wanted.copied:
            self._at_shares(methods.COPIED, SHARES)
        self._at_shares(methods.TFLMS, SHARES)
        for limit in self.wanted.limits_mib:
            self.bench.measure(self.part(methods.TFLMS, limit))
        for method in (
            methods.SWAP_ALL,
            methods.RECOMPUTE_CHEAP,
            methods.RECOMPUTE_GRAD,
            methods.KERAS_REMAT,
            methods.KERAS,
            methods.XLA,
        ):
            self.bench.measure(self.part(method, steps=3))
        self.bench.measure(self.part(methods.RECOMPUTE_ALL, steps=1))

    def torch(self) -> None:
        """Measures the same network in PyTorch."""
        if importlib.util.find_spec("torch") is None:
            self.bench.skip("PyTorch: not installed; it is in the extra `compare`")
        else:
            for method in methods.TORCH_METHODS:
                self.bench.measure(self.part(method, steps=3 if method != methods.TORCH_SAVE_ON_CPU else 1))

    def curve(self) -> None:
        """Measures more limits for the figure, the smallest first."""
        if self.with_mib is not None:
            self.bench.measure(self.part(methods.LMS, self.with_mib))
        self._at_shares(methods.LMS, MORE_SHARES)

    def _at_shares(self, method: str, shares: Sequence[float]) -> None:
        for share in shares:
            if self.without_mib is None:
                self.bench.skip(f"{self.wanted.model} {self.resolution}³, {method} at {share:.0%} of an unknown limit")
            else:
                self.bench.measure(self.part(method, math.ceil(share * self.without_mib)))

    def _untimed(self, method: str, limit_mib: int | None, steps: int) -> StudyPart:
        """A part that only tells whether it trains for so many steps."""
        return StudyPart(
            method=method, model=self.wanted.model, resolution=self.resolution, limit_mib=limit_mib, warm_up=1, steps=steps - 1,
            timed=False,
        )  # fmt: skip

    def _trains(self, method: str, limit_mib: int, *, steps: int) -> bool | None:
        result = self.bench.measure(self._untimed(method, limit_mib, steps))
        return None if result is None else result.trained


def smallest(trains: Callable[[int], bool | None], guess: int, bad: int) -> int | None:
    """The smallest limit that trains, to within TOLERANCE, by bisection of ratios; None if none was found.

    trains: limit -> True, False, or None if there is no time to try. bad: believed too small, but tried before it is
    taken for granted.
    """
    good, limit, tried_bad = None, guess, False
    for _ in range(MOST_RUNS):
        answer = trains(limit)
        if answer is None:
            break
        if answer:
            good = limit
        else:
            bad, tried_bad = max(bad, limit), True
        if good is None:
            limit = math.ceil(limit * 1.06)
            continue
        if good / bad - 1 <= TOLERANCE:
            if tried_bad:
                break
            bad = int(bad / 1.15)
        limit = round(math.sqrt(good * bad))
    return good


def _mib(size_bytes: int) -> int:
    return -(-size_bytes // MIB)
