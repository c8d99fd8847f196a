"""Which buffers leave, and how, so that the rest fits: a covering program over intervals. No TensorFlow here.

COVER-1  What a plan holds is a sum over buffers: each holds its spans of anchors, those of the way that it takes or, where it
         is kept, those of the unplanned step.
COVER-2  The program: take ways, one per buffer at most, such that at no anchor more is held than the budget; the cheapest.
         Its rows are differences of neighbouring anchors, so that a span has an entry where it starts and one where it ends.
         Such a program has few fractional values, and is solved in milliseconds where the same in full rows takes minutes.
COVER-3  Where the budget is too small, as little as possible is held above it.
COVER-4  Fractions are rounded: each buffer takes the way with the largest one. What is then above the budget goes by the
         cheapest changes for each byte; then each buffer, the dearest first, takes the cheapest way that still fits, or stays.
COVER-5  A way that counts on reading another buffer at some anchor (WAYS-6) is not taken together with a way of that one that does
         not have it there.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csc_array

from lms3d.engine.planners.hybrid.ways import Spans, Way

_MIB = 1 << 20
_ABOVE_SECONDS = 1e3  # price of a MiB above the budget: more than anything else (COVER-3)
_SOME = 1e-6  # a smaller fraction is none


@dataclass(frozen=True)
class Held:
    """What the unplanned step holds: bytes at each anchor, and of these the spans of each buffer."""

    live_bytes: np.ndarray
    spans: Mapping[int, Spans]
    sizes: Sequence[int]


@dataclass(frozen=True)
class Cover:
    """The ways that are taken, by buffer, and the bytes that are then live at each anchor.

    bound_seconds: no choice of ways that fits costs less. seconds_per_byte: of that bound, for a smaller budget at least so much
    more. above_bytes: by how much the least that can be held is above the budget (COVER-3).
    """

    taken: dict[int, Way]
    live_bytes: np.ndarray
    bound_seconds: float = 0.0
    seconds_per_byte: float = 0.0
    above_bytes: int = 0


def cover(held: Held, ways: Sequence[Way], budget_bytes: int) -> Cover:
    """The cheapest ways under a budget (COVER-2)."""
    program = _Program(held, ways, budget_bytes)
    if not len(program.rows):
        return Cover({}, held.live_bytes)
    solved = program.solve()
    rounding = _Rounding(held, ways, budget_bytes + solved.above_bytes)
    rounding.take(solved.fractions)
    rounding.repair()
    rounding.settle()
    rounding.give_back()
    return Cover(rounding.taken, rounding.live, solved.seconds, solved.seconds_per_byte, solved.above_bytes)


class _Solved(NamedTuple):
    """fractions: of each way, shape (ways,); the others as in `Cover`."""

    fractions: np.ndarray
    seconds: float
    seconds_per_byte: float
    above_bytes: int


class _Program:
    def __init__(self, held: Held, ways: Sequence[Way], budget_bytes: int) -> None:
        self.held, self.ways, self.excess = held, ways, held.live_bytes - budget_bytes
        self.rows = self._tight_rows()

    def _tight_rows(self) -> np.ndarray:
        """The anchors that bind: above the budget, and of neighbours at which the same ways hold the same only the highest."""
        count = len(self.excess)
        changes = np.zeros(count + 2, bool)
        for way in self.ways:
            for start, end in (*way.spans, *self.held.spans[way.buffer]):
                changes[start] = changes[end + 1] = True
        block = changes[:count].cumsum()
        above = np.flatnonzero(self.excess > 0)
        order = above[np.lexsort((-self.excess[above], block[above]))]
        return np.sort(order[np.unique(block[order], return_index=True)[1]])

    def _entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, column, MiB that the column holds more than at the row before) of all ways."""
        columns: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        mib: list[float] = []
        for column, way in enumerate(self.ways):
            size = self.held.sizes[way.buffer] / _MIB
            for sign, spans in ((1.0, way.spans), (-1.0, self.held.spans[way.buffer])):
                for start, end in spans:
                    columns.append(column)
                    starts.append(start)
                    ends.append(end + 1)
                    mib.append(sign * size)
        low, high = np.searchsorted(self.rows, starts), np.searchsorted(self.rows, ends)
        rows, values = np.concatenate([low, high]), np.array(mib)
        values = np.concatenate([values, -values])
        both = np.array(columns * 2, np.intp)
        inside = rows < len(self.rows)
        return rows[inside], both[inside], values[inside]

    def solve(self) -> _Solved:
        count, rows = len(self.ways), len(self.rows)
        at, column, value = self._entries()
        slack = np.arange(rows)
        above = count + rows
        matrix = csc_array(
            (
                np.concatenate([value, np.ones(rows), -np.ones(rows - 1), [-1.0]]),
                (
                    np.concatenate([at, slack, slack[1:], [0]]),
                    np.concatenate([column, count + slack, count + slack[:-1], [above]]),
                ),
            ),
            shape=(rows, above + 1),
        )
        prices = np.array([w.seconds for w in self.ways])
        highs = np.concatenate([np.ones(count), np.full(rows + 1, np.inf)])
        found = linprog(
            np.concatenate([prices, np.zeros(rows), [_ABOVE_SECONDS]]),
            A_eq=matrix,
            b_eq=-np.diff(self.excess[self.rows] / _MIB, prepend=0.0),
            bounds=np.column_stack([np.zeros(above + 1), highs]),
            **self._at_most_one(above + 1),
            method="highs-ipm",
        )
        fractions = found.x[:count]
        # The budget is in the first row only: later rows are differences.
        dearer = max(-float(found.eqlin.marginals[0]), 0.0) / _MIB
        above_bytes = int(np.ceil(found.x[above] * _MIB)) if found.x[above] > _SOME else 0
        return _Solved(fractions, float(prices @ fractions), 0.0 if above_bytes else dearer, above_bytes)

    def _at_most_one(self, columns: int) -> dict[str, object]:
        """Of the ways of a buffer, and of those that exclude each other (COVER-5)."""
        of: dict[int, list[int]] = defaultdict(list)
        for column, way in enumerate(self.ways):
            of[way.buffer].append(column)
        groups = [several for several in of.values() if len(several) > 1]
        for column, way in enumerate(self.ways):
            for b in sorted({b for b, _ in way.reads}):
                lacking = [other for other in of[b] if _lacks(self.ways[other], way)]
                groups += [[column, *lacking]] if lacking else []
        if not groups:
            return {}
        row = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        column_of = np.array([column for group in groups for column in group], np.intp)
        matrix = csc_array((np.ones(len(row)), (row, column_of)), shape=(len(groups), columns))
        return {"A_ub": matrix, "b_ub": np.ones(len(groups))}


class _Rounding:
    """COVER-4."""

    def __init__(self, held: Held, ways: Sequence[Way], budget_bytes: int) -> None:
        self.held, self.ways, self.budget = held, ways, budget_bytes
        self.live = held.live_bytes.copy()
        self.taken: dict[int, Way] = {}
        self.of: dict[int, list[Way]] = defaultdict(list)
        self.asking: dict[int, set[int]] = defaultdict(set)
        for way in ways:
            self.of[way.buffer].append(way)
            for b, _ in way.reads:
                self.asking[b].add(way.buffer)

    def take(self, fractions: np.ndarray) -> None:
        """Of each buffer the way with the largest fraction; the rest of 1 is kept."""
        best: dict[int, tuple[float, Way]] = {}
        rest = dict.fromkeys(self.of, 1.0)
        for i in np.flatnonzero(fractions > _SOME).tolist():
            way, fraction = self.ways[i], float(fractions[i])
            rest[way.buffer] -= fraction
            if way.buffer not in best or best[way.buffer][0] < fraction:
                best[way.buffer] = fraction, way
        for fraction, way in best.values():
            if fraction > rest[way.buffer]:
                self._change(way.buffer, way)

    def repair(self) -> None:
        """At the highest anchor the change that costs the least for each byte, each at most once, until all fits."""
        able = _Able(self.held, self.ways, self.taken)
        while int(self.live.max()) > self.budget:
            found = able.best_change(int(self.live.argmax()))
            if found is None:
                return
            self._change(self.ways[found].buffer, self.ways[found])

    def settle(self) -> None:
        """COVER-5: what counts on reading what is not there is computed from others."""
        for way in list(self.taken.values()):
            others = [o for o in self.of[way.buffer] if o.spans == way.spans and self._agrees(way.buffer, o)]
            if others and not self._agrees(way.buffer, way):
                self._change(way.buffer, min(others, key=lambda o: o.seconds))

    def _agrees(self, b: int, way: Way | None) -> bool:
        """Whether COVER-5 holds with this way for a buffer."""
        if way is None:
            return True
        mine = all(read not in self.taken or not _lacks(self.taken[read], way) for read, _ in way.reads)
        return mine and not any(_lacks(way, self.taken[asking]) for asking in self.asking[b] & self.taken.keys())

    def give_back(self) -> None:
        """Each buffer that leaves, the dearest first, takes the cheapest way that still fits, or stays."""
        for way in sorted(self.taken.values(), key=lambda w: (-w.seconds, w.buffer)):
            for other in (None, *sorted(self.of[way.buffer], key=lambda w: w.seconds)):
                if other is way or (other is not None and other.seconds >= way.seconds):
                    break
                if self._agrees(way.buffer, other) and self._fits(way, other):
                    self._change(way.buffer, other)
                    break

    def _spans(self, buffer: int, way: Way | None) -> Spans:
        return self.held.spans[buffer] if way is None else way.spans

    def _fits(self, way: Way, other: Way | None) -> bool:
        """Whether the budget holds with another way for a buffer."""
        size, after = self.held.sizes[way.buffer], self._spans(way.buffer, other)
        edges = sorted({edge for start, end in (*way.spans, *after) for edge in (start, end + 1)})
        for start, end in itertools.pairwise(edges):
            more = _count(after, start) - _count(way.spans, start)
            if more > 0 and int(self.live[start:end].max()) + more * size > self.budget:
                return False
        return True

    def _change(self, buffer: int, way: Way | None) -> None:
        size, before = self.held.sizes[buffer], self.taken.pop(buffer, None)
        for sign, spans in ((-1, self._spans(buffer, before)), (1, self._spans(buffer, way))):
            for start, end in spans:
                self.live[start : end + 1] += sign * size
        if way is not None:
            self.taken[buffer] = way


class _Able:
    """The changes that `repair` may still make, in arrays."""

    def __init__(self, held: Held, ways: Sequence[Way], taken: Mapping[int, Way]) -> None:
        self.spans = np.array([(s, e, i) for i, way in enumerate(ways) for s, e in way.spans], np.intp).T
        buffers = sorted({way.buffer for way in ways})
        self.kept = np.array([(s, e, b) for b in buffers for s, e in held.spans[b]], np.intp).T
        self.buffer = np.array([way.buffer for way in ways], np.intp)
        self.seconds = np.array([way.seconds for way in ways])
        self.bytes = np.array([held.sizes[way.buffer] for way in ways], float)
        self.unused = np.ones(len(ways), bool)
        self.taken = np.full(len(held.sizes), -1, np.intp)  # by buffer
        for i, way in enumerate(ways):
            if taken.get(way.buffer) is way:
                self.taken[way.buffer] = i

    def best_change(self, anchor: int) -> int | None:
        """The way that frees bytes at an anchor for the lowest price each, None where none is left; it counts as taken."""
        holds = _holding(self.spans, anchor, len(self.buffer))
        kept = _holding(self.kept, anchor, len(self.taken))
        leaves = self.taken >= 0
        held = np.where(leaves, holds[self.taken], kept)
        paid = np.where(leaves, self.seconds[self.taken], 0.0)
        freed = held[self.buffer] - holds
        with np.errstate(divide="ignore", invalid="ignore"):
            price = (self.seconds - paid[self.buffer]) / (freed * self.bytes)
        price[(freed <= 0) | ~self.unused] = np.inf
        best = int(price.argmin())
        if price[best] == np.inf:
            return None
        self.unused[best], self.taken[self.buffer[best]] = False, best
        return best


def _lacks(way: Way, other: Way) -> bool:
    """Whether the other way counts on a read that this one cannot serve (COVER-5)."""
    return any(b == way.buffer and not way.has(anchor) for b, anchor in other.reads)


def _holding(spans: np.ndarray, anchor: int, count: int) -> np.ndarray:
    """For each owner of (start, end, owner) spans how many of them lie over an anchor."""
    start, end, owner = spans
    return np.bincount(owner[(start <= anchor) & (anchor <= end)], minlength=count)


def _count(spans: Iterable[tuple[int, int]], anchor: int) -> int:
    return sum(start <= anchor <= end for start, end in spans)
