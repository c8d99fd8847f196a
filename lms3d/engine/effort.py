"""What planning may cost, by a price list and never by the clock: equal questions get equal plans. No TensorFlow here.

- EFFORT-1: each evaluation has a price that grows with the size of the step: about its seconds on one core of a server. A busy
  machine takes longer and finds the same plan.
- EFFORT-2: a run grants the larger of `LEAST_SECONDS` and `RUN_SHARE` of the time of its steps without a plan. The grant is rounded
  down to a class, so that runs of nearly the same length ask the same question and find the plan in the cache.
- EFFORT-3: if the length of the run is unknown, or large, effort is not limited (None).
- EFFORT-4: a run whose plan still loses time has more at stake: it grants `STAKE_SHARE` of the seconds that it would lose, if that
  is more, up to `MOST_SECONDS`. The search begins anew with this grant, and the better plan is taken.
- EFFORT-5: if effort is limited, a plan that loses at most `SETTLED` of the unplanned step's time ends the search.
- EFFORT-6: there must be a plan: if the quick methods find none, the search goes on to the end at any cost.
- EFFORT-7: if effort is not limited, a plan that still loses much is compared with that of the shortest search, which may end in a
  better minimum. In a pool, room is then looked for in cheaper plans.
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
        """Charge for reducing a step to a problem."""
        self.seconds += tuning.OP_SECONDS * ops

    def charge_schedule(self, anchors: int, copies: int) -> None:
        """Charge for a schedule. copies: the copies of all buffers that come back."""
        self.schedules += 1
        self.seconds += tuning.ANCHOR_SECONDS * anchors + tuning.COPY_SECONDS * copies

    def charge_replay(self, lives: int) -> None:
        """Charge for a replay of so many lives in a pool."""
        self.replays += 1
        self.seconds += tuning.LIFE_SECONDS * lives

    def charge_cover(self, candidates: int) -> None:
        """A covering program with so many candidates."""
        self.seconds += tuning.CANDIDATE_SECONDS * candidates

    def charge_program(self, anchors: int) -> None:
        """Charge for the mixed-integer program."""
        self.seconds += exact_seconds(anchors)


def exact_seconds(anchors: int) -> float:
    """The price of the mixed-integer program."""
    return tuning.EXACT_SECONDS * anchors


@dataclass(frozen=True)
class RunLength:
    """The length of a run, which grants effort. steps: all of them, None if unknown. spent_seconds: what plans have cost so far."""

    steps: int | None = None
    spent_seconds: float = 0.0

    def left(self, step_seconds: float) -> float:
        """Seconds that the run still grants (EFFORT-2); infinite if the length is unknown."""
        if self.steps is None:
            return math.inf
        return max(tuning.LEAST_SECONDS, tuning.RUN_SHARE * self.steps * step_seconds) - self.spent_seconds

    def granted(self, step_seconds: float) -> float | None:
        """The class of the seconds left, at least the smallest class. None: no limit (EFFORT-3)."""
        seconds = self.left(step_seconds)
        if seconds >= tuning.MOST_SECONDS:
            return None
        return _class(max(seconds, tuning.SMALLEST_SECONDS))

    def seconds(self, step_seconds: float) -> float:
        """The class of the time of all steps; 0 if that is unknown, or too short to have much at stake (EFFORT-4)."""
        seconds = (self.steps or 0) * step_seconds
        return _class(seconds) if tuning.STAKE_SHARE * seconds >= tuning.LEAST_SECONDS else 0.0


def at_stake(run_seconds: float, lost_share: float) -> float:
    """The seconds of effort that a run grants a plan which loses this share of a step's time (EFFORT-4)."""
    return min(tuning.STAKE_SHARE * run_seconds * lost_share, tuning.MOST_SECONDS)


def _class(seconds: float) -> float:
    """The seconds rounded down to a power of two times `LEAST_SECONDS`."""
    return float(tuning.LEAST_SECONDS * 2.0 ** math.floor(math.log2(seconds / tuning.LEAST_SECONDS)))
