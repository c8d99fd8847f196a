"""Finds the rank that keeps the others waiting. No threads, connections or clocks here: the caller passes ranks and times.

All ranks take part in the same exchanges (gradients, means, messages) in the same order. A rank whose main thread hangs, in a read,
an op or a lock, has begun fewer exchanges than the ranks that wait for it. Its heartbeat continues, since another thread sends it.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

LEAST_SECONDS = 120.0
TIMES = 20.0
"""A rank is late after `LEAST_SECONDS`, or after `TIMES` the usual time between two exchanges if that is longer. Planning,
validation and saving take a rank minutes, too."""

KNOWN = 10  # the number of exchanges after which their usual time is known
_KEPT = 1000


@dataclass(frozen=True)
class Late:
    """A rank that the others wait for. exchange: the number of the exchange. usual_seconds: the usual time between two
    exchanges."""

    rank: int
    exchange: int
    waited_seconds: float
    usual_seconds: float


class Lateness:
    """The exchanges that each rank has begun, as rank 0 knows them."""

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}
        self._front, self._since = 0, 0.0  # the latest exchange that any rank has begun, and when
        self._intervals: deque[float] = deque(maxlen=_KEPT)
        self._reported = 0  # the exchange for which a late rank was last reported

    def note(self, rank: int, begun: int, now: float) -> None:
        """Notes that a rank has begun so many exchanges. now: the seconds of a clock that never goes back."""
        self._begun[rank] = begun
        if begun > self._front:
            if self._front:
                self._intervals.append((now - self._since) / (begun - self._front))
            self._front, self._since = begun, now

    def forget(self, rank: int) -> None:
        """Notes that a rank has left."""
        self._begun.pop(rank, None)

    def late(self, now: float) -> Late | None:
        """The rank that is furthest behind, once per exchange, if the others have waited for unusually long."""
        if len(self._intervals) < KNOWN or self._front == self._reported:
            return None
        usual, waited = statistics.median(self._intervals), now - self._since
        last = min(self._begun, key=self._begun.__getitem__)
        if self._begun[last] >= self._front or waited < max(LEAST_SECONDS, TIMES * usual):
            return None
        self._reported = self._front
        return Late(last, self._begun[last] + 1, waited, usual)
