"""Which rank keeps the others waiting. No threads, connections or clocks here: ranks and times are given.

Ranks take part in the same exchanges in the same order (gradients, means, messages). One whose main thread hangs, in a read, in
an op or in a lock, has begun fewer of them than those that wait for it; its heartbeat goes on, which comes from another thread.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

LEAST_SECONDS = 120.0
TIMES = 20.0
"""Of the usual time between two exchanges. Planning, validation and saving take a rank minutes, too."""

KNOWN = 10  # exchanges before there is anything usual
_KEPT = 1000


@dataclass(frozen=True)
class Late:
    """A rank that the others wait for. usual_seconds: between two exchanges."""

    rank: int
    exchange: int
    waited_seconds: float
    usual_seconds: float


class Lateness:
    """What rank 0 knows of the exchanges that each rank has begun."""

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}
        self._front, self._since = 0, 0.0
        self._apart: deque[float] = deque(maxlen=_KEPT)
        self._told: set[int] = set()  # exchanges

    def note(self, rank: int, begun: int, now: float) -> None:
        """A rank has begun so many exchanges. now: in seconds, of a clock that never goes back."""
        self._begun[rank] = begun
        if begun > self._front:
            if self._front:
                self._apart.append((now - self._since) / (begun - self._front))
            self._front, self._since = begun, now

    def forget(self, rank: int) -> None:
        """A rank has left."""
        self._begun.pop(rank, None)

    def late(self, now: float) -> Late | None:
        """The rank that is furthest behind, once per exchange, if the others have waited for unusually long."""
        if len(self._apart) < KNOWN or self._front in self._told:
            return None
        usual, waited = statistics.median(self._apart), now - self._since
        last = min(self._begun, key=self._begun.__getitem__)
        if self._begun[last] >= self._front or waited < max(LEAST_SECONDS, TIMES * usual):
            return None
        self._told = {self._front}
        return Late(last, self._begun[last] + 1, waited, usual)
