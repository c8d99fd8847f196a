"""What planning may cost, by price list and never by the clock: equal questions get equal plans. No TensorFlow here.

- EFFORT-1: each evaluation has a price by the size of what it looks at, about the seconds that it takes on one core of a
  server. A busy machine takes longer and finds the same.
- EFFORT-2: a run grants the larger of `LEAST_SECONDS` and `RUN_SHARE` of its steps' time, whatever their plans. The grant is
  rounded down to a class, so that runs of nearly the same length ask the same question and meet the cache.
- EFFORT-3: where the length of the run is unknown, or large, effort is not limited (None).
- EFFORT-4: a run whose plan still loses time has more at stake: it grants `STAKE_SHARE` of the seconds that it would lose, where
  that is more, up to `MOST_SECONDS`. The search begins anew with that, and the better plan counts.
- EFFORT-5: where effort is limited, a plan that loses at most `SETTLED` of the unplanned step's time ends the search.
- EFFORT-6: there must be a plan: a step that nothing quick fits is searched to the end, whatever that costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lms3d.engine import tuning


@dataclass
class Account:
    """The seconds that planning has cost so far, and how many schedules and replays it has evaluated."""

    seconds: float = 0.0
    schedules: int = 0
    replays: int = 0

    def charge_graph(self, ops: int) -> None:
        """A step was reduced to a problem."""
        self.seconds += tuning.OP_SECONDS * ops

    def charge_schedule(self, anchors: int, copies: int) -> None:
        """A schedule. copies: those that come back, of all buffers."""
        self.schedules += 1
        self.seconds += tuning.ANCHOR_SECONDS * anchors + tuning.COPY_SECONDS * copies

    def charge_replay(self, anchors: int, copies: int, times: int) -> None:
        """A schedule's allocations, in a pool."""
        self.replays += times
        self.seconds += tuning.REPLAYED_SECONDS * (anchors + copies) * times

    def charge_cover(self, candidates: int) -> None:
        """A covering program with so many candidates."""
        self.seconds += tuning.CANDIDATE_SECONDS * candidates

    def charge_program(self, anchors: int) -> None:
        """The mixed-integer program."""
        self.seconds += exact_seconds(anchors)


def exact_seconds(anchors: int) -> float:
    """The price of the mixed-integer program."""
    return tuning.EXACT_SECONDS * anchors


@dataclass(frozen=True)
class Run:
    """A run that plans are made for. steps: all of them, None is unknown. spent_seconds: what its plans have cost so far."""

    steps: int | None = None
    spent_seconds: float = 0.0

    def left(self, step_seconds: float) -> float:
        """Seconds that the run still grants (EFFORT-2); infinite where the length is unknown."""
        if self.steps is None:
            return math.inf
        return max(tuning.LEAST_SECONDS, tuning.RUN_SHARE * self.steps * step_seconds) - self.spent_seconds

    def granted(self, step_seconds: float) -> float | None:
        """The class of what is left, at least the smallest one. None: no limit (EFFORT-3)."""
        seconds = self.left(step_seconds)
        if seconds >= tuning.MOST_SECONDS:
            return None
        return _class(max(seconds, tuning.SMALLEST_SECONDS))

    def seconds(self, step_seconds: float) -> float:
        """The class of what all its steps take; 0 where that is unknown, or too short to have much at stake (EFFORT-4)."""
        seconds = (self.steps or 0) * step_seconds
        return _class(seconds) if tuning.STAKE_SHARE * seconds >= tuning.LEAST_SECONDS else 0.0


def at_stake(run_seconds: float, lost_share: float) -> float:
    """The seconds of effort that a run grants a plan which loses this share of a step's time (EFFORT-4)."""
    return min(tuning.STAKE_SHARE * run_seconds * lost_share, tuning.MOST_SECONDS)


def _class(seconds: float) -> float:
    """Rounded down to a power of two times `LEAST_SECONDS`."""
    return float(tuning.LEAST_SECONDS * 2.0 ** math.floor(math.log2(seconds / tuning.LEAST_SECONDS)))
