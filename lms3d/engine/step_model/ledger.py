"""The ledger of live bytes: what is held from one event to another -> bytes at each event. No TensorFlow here.

An event is whatever the caller counts in: an op of a step, an anchor, or an event of a schedule. A span holds its bytes from its
first event to its last, both included:

    events        0   1   2   3
    4 bytes       |-------|                    live_bytes(spans, 4)  ->  [4, 6, 6, 2]
    2 bytes           |-----------|            at(spans, 3)          ->  the second span
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np


class Span(Protocol):
    """Bytes that are held from event `start` to event `end`, both included."""

    @property
    def bytes(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


AnySpan = TypeVar("AnySpan", bound=Span)


class Block(NamedTuple):
    """A span and nothing else."""

    bytes: int
    start: int
    end: int


def live_bytes(spans: Iterable[Span], events: int) -> np.ndarray:
    """The bytes that are live at each event: int64, shape (events,)."""
    change = [0] * (events + 1)
    for span in spans:
        change[span.start] += span.bytes
        change[span.end + 1] -= span.bytes
    live: np.ndarray = np.array(change, np.int64).cumsum()[:-1]
    return live


def at(spans: Iterable[AnySpan], event: int) -> list[AnySpan]:
    """The spans that hold bytes at an event."""
    return [span for span in spans if span.start <= event <= span.end and span.bytes]


def by_event(spans: Sequence[Span], events: int) -> tuple[list[list[int]], list[list[int]]]:
    """(starts, ends): for each event the indices of the spans that start with it, and of the spans that end with it."""
    starts: list[list[int]] = [[] for _ in range(events)]
    ends: list[list[int]] = [[] for _ in range(events)]
    for i, span in enumerate(spans):
        starts[span.start].append(i)
        ends[span.end].append(i)
    return starts, ends
