"""What planning may cost: seconds by price list, never by the clock, so that equal questions get equal plans. No TensorFlow.

1. Each evaluation has a price by the size of what it looks at: about the seconds that it takes on one core of a server
   (measured on steps of 630 and 1,426 anchors). A busy machine takes longer and finds the same.
2. A run grants the larger of `LEAST_SECONDS` and `SHARE` of what its steps take, whatever plans are made for them; what is
   granted is rounded down to a class, so that runs of nearly the same length ask the same question and meet the cache.
3. Where nobody knows the length, or the run is long, the planner takes what it can use (None).
4. A plan comes first: a step that nothing quick fits is searched to the end, whatever that costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_SECONDS, SHARE = 3.0, 0.02
MOST_SECONDS = 96.0  # a class: from here on there is no limit but the planner's own
SMALLEST_SECONDS = LEAST_SECONDS / 8  # a class: less is no search

# Seconds: of a schedule per anchor, and per copy that is swapped in or computed again; of a replay in a pool per anchor and
# copy; of the mixed-integer program per anchor; of reading a step per op.
_ANCHOR, _COPY, _REPLAYED, _EXACT, _OP = 1.5e-6, 8e-6, 2e-6, 1e-3, 5e-5


@dataclass
class Account:
    """The seconds that planning has cost so far, and how many schedules and replays it has evaluated."""

    seconds: float = 0.0
    schedules: int = 0
    replays: int = 0

    def read(self, ops: int) -> None:
        """A step was reduced to a problem."""
        self.seconds += _OP * ops

    def built(self, anchors: int, copies: int) -> None:
        """A schedule. copies: those that come back, of all buffers."""
        self.schedules += 1
        self.seconds += _ANCHOR * anchors + _COPY * copies

    def replayed(self, anchors: int, copies: int, times: int) -> None:
        """A schedule's allocations, in a pool."""
        self.replays += times
        self.seconds += _REPLAYED * (anchors + copies) * times

    def solved(self, anchors: int) -> None:
        """The mixed-integer program."""
        self.seconds += exact_seconds(anchors)


def exact_seconds(anchors: int) -> float:
    """The price of the mixed-integer program."""
    return _EXACT * anchors


def left(steps: int | None, step_seconds: float, spent_seconds: float) -> float:
    """Seconds that a run of so many steps grants (rule 2), after what it has spent on plans; infinite where nobody knows."""
    return math.inf if steps is None else max(LEAST_SECONDS, SHARE * steps * step_seconds) - spent_seconds


def granted(steps: int | None, step_seconds: float, spent_seconds: float = 0.0) -> float | None:
    """The class of what is left, and at least the smallest one. None: no limit (rule 3)."""
    seconds = left(steps, step_seconds, spent_seconds)
    if seconds >= MOST_SECONDS:
        return None
    seconds = max(seconds, SMALLEST_SECONDS)
    return float(LEAST_SECONDS * 2.0 ** math.floor(math.log2(seconds / LEAST_SECONDS)))
