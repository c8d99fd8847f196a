"""A covering program over intervals: which buffers leave, and how, so that the others fit. No TensorFlow here.

COVER-1  What a plan holds is a sum over buffers. Each holds the spans in which its buffer is live: under the candidate chosen, or,
         if it is kept, in the unplanned step. A candidate also holds the room of its chains.
COVER-2  The program takes at most one candidate per buffer, so that no anchor holds more than the budget, at the lowest price. Its
         rows are differences of neighbouring anchors: a span has an entry where it starts and one where it ends. Such a program has
         few fractional values, and is solved in milliseconds; the same program in full rows takes minutes.
COVER-3  If the budget is too small, the program holds as little as possible above it.
COVER-4  Fractions are rounded: each buffer takes the candidate with the largest one. Candidates that contradict others are replaced
         (COVER-5). Then the cheapest changes for each byte remove what is above the budget. Then each buffer, the dearest first,
         takes the cheapest candidate that still fits, or stays.
COVER-5  A candidate that counts on reading another buffer at some anchor is not taken together with a candidate of that buffer
         under which it cannot be read then. Nor is one that recomputes the other buffer on the way, if that one comes back from
         the tier, or is recomputed so soon before or afterwards that both reads would share a copy.
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

from lms3d.engine.planners.hybrid.candidates import Candidate, Spans
from lms3d.engine.step_model.decisions import Mode

_MIB = 1 << 20
_ABOVE_SECONDS = 1e3  # price of a MiB above the budget: more than anything else (COVER-3)
_SOME = 1e-6  # a smaller fraction counts as none


@dataclass(frozen=True)
class UnplannedStep:
    """What the step without a plan holds. live_bytes: at each anchor. spans: in which each buffer is live. sizes: bytes of each."""

    live_bytes: np.ndarray
    spans: Mapping[int, Spans]
    sizes: Sequence[int]

    def holds(self, b: int, candidate: Candidate | None) -> list[tuple[int, int, int]]:
        """(first anchor, last anchor, bytes) of what a buffer holds under a candidate, its chains included; None keeps it."""
        if candidate is None:
            return [(start, end, self.sizes[b]) for start, end in self.spans[b]]
        own = [(start, end, self.sizes[b]) for start, end in candidate.spans]
        return own + [(anchor, anchor, size) for anchor, size in candidate.room]


@dataclass(frozen=True)
class Cover:
    """The candidates that are taken, by buffer, and the bytes that are then live at each anchor.

    bound_seconds: no selection of candidates that fits costs less. seconds_per_byte: for each byte less of the budget, that bound
    rises by at least so much. above_bytes: by how much the least that can be held is above the budget (COVER-3).
    """

    taken: dict[int, Candidate]
    live_bytes: np.ndarray
    bound_seconds: float = 0.0
    seconds_per_byte: float = 0.0
    above_bytes: int = 0


def cover(unplanned: UnplannedStep, candidates: Sequence[Candidate], budget_bytes: int) -> Cover:
    """The cheapest candidates under a budget (COVER-2)."""
    if not candidates:
        peak_bytes = int(unplanned.live_bytes.max(initial=0))  # 0: a step without buffers
        return Cover({}, unplanned.live_bytes, above_bytes=max(peak_bytes - budget_bytes, 0))
    program = _Program(unplanned, candidates, budget_bytes)
    if not len(program.rows):
        return Cover({}, unplanned.live_bytes)
    solved = program.solve()
    rounding = _Rounding(unplanned, candidates, budget_bytes + solved.above_bytes)
    rounding.take(solved.fractions)
    rounding.settle()
    rounding.repair()
    rounding.give_back()
    return Cover(rounding.taken, rounding.live_bytes, solved.seconds, solved.seconds_per_byte, solved.above_bytes)


class _Solved(NamedTuple):
    """fractions: of each candidate, shape (candidates,). The other fields are as in `Cover`."""

    fractions: np.ndarray
    seconds: float
    seconds_per_byte: float
    above_bytes: int


class _Program:
    def __init__(self, unplanned: UnplannedStep, candidates: Sequence[Candidate], budget_bytes: int) -> None:
        self.unplanned, self.candidates = unplanned, candidates
        self.excess_bytes = unplanned.live_bytes - budget_bytes
        self.rows = self._tight_rows()

    def _tight_rows(self) -> np.ndarray:
        """The anchors that bind: those above the budget; of neighbours at which the same candidates hold the same, the highest."""
        count = len(self.excess_bytes)
        changes = np.zeros(count + 2, bool)
        for candidate in self.candidates:
            for start, end in (*candidate.spans, *self.unplanned.spans[candidate.buffer]):
                changes[start] = changes[end + 1] = True
            for anchor, _ in candidate.room:
                changes[anchor] = changes[anchor + 1] = True
        block = changes[:count].cumsum()
        above = np.flatnonzero(self.excess_bytes > 0)
        order = above[np.lexsort((-self.excess_bytes[above], block[above]))]
        return np.sort(order[np.unique(block[order], return_index=True)[1]])

    def _entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, column, MiB that the column holds more than at the row before) of all candidates."""
        columns: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        mib: list[float] = []
        for column, candidate in enumerate(self.candidates):
            b = candidate.buffer
            for sign, holds in ((1, self.unplanned.holds(b, candidate)), (-1, self.unplanned.holds(b, None))):
                for start, end, size in holds:
                    columns.append(column)
                    starts.append(start)
                    ends.append(end + 1)
                    mib.append(sign * size / _MIB)
        low, high = np.searchsorted(self.rows, starts), np.searchsorted(self.rows, ends)
        rows, values = np.concatenate([low, high]), np.array(mib)
        values = np.concatenate([values, -values])
        both = np.array(columns * 2, np.intp)
        inside = rows < len(self.rows)
        return rows[inside], both[inside], values[inside]

    def solve(self) -> _Solved:
        count, rows = len(self.candidates), len(self.rows)
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
        prices = np.array([c.seconds for c in self.candidates])
        highs = np.concatenate([np.ones(count), np.full(rows + 1, np.inf)])
        optimum = linprog(
            np.concatenate([prices, np.zeros(rows), [_ABOVE_SECONDS]]),
            A_eq=matrix,
            b_eq=-np.diff(self.excess_bytes[self.rows] / _MIB, prepend=0.0),
            bounds=np.column_stack([np.zeros(above + 1), highs]),
            **self._at_most_one(above + 1),
            method="highs-ipm",
        )
        fractions = optimum.x[:count]
        # The budget is in the first row only: later rows are differences.
        dearer = max(-float(optimum.eqlin.marginals[0]), 0.0) / _MIB
        above_bytes = int(np.ceil(optimum.x[above] * _MIB)) if optimum.x[above] > _SOME else 0
        return _Solved(fractions, float(prices @ fractions), 0.0 if above_bytes else dearer, above_bytes)

    def _at_most_one(self, columns: int) -> dict[str, object]:
        """Rows for the candidates of one buffer, and for candidates that exclude each other (COVER-5)."""
        of: dict[int, list[int]] = defaultdict(list)
        for column, candidate in enumerate(self.candidates):
            of[candidate.buffer].append(column)
        groups = [several for several in of.values() if len(several) > 1]
        for column, candidate in enumerate(self.candidates):
            for b in sorted({b for b, _ in (*candidate.reads, *candidate.through)}):
                lacking = [other for other in of[b] if _lacks(self.candidates[other], candidate)]
                groups += [[column, *lacking]] if lacking else []
        if not groups:
            return {}
        row = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        column_of = np.array([column for group in groups for column in group], np.intp)
        matrix = csc_array((np.ones(len(row)), (row, column_of)), shape=(len(groups), columns))
        return {"A_ub": matrix, "b_ub": np.ones(len(groups))}


class _Rounding:
    """From fractions to candidates (COVER-4)."""

    def __init__(self, unplanned: UnplannedStep, candidates: Sequence[Candidate], budget_bytes: int) -> None:
        self.unplanned, self.candidates, self.budget_bytes = unplanned, candidates, budget_bytes
        self.live_bytes = unplanned.live_bytes.copy()
        self.taken: dict[int, Candidate] = {}
        self.of: dict[int, list[Candidate]] = defaultdict(list)
        self.readers: dict[int, set[int]] = defaultdict(set)  # buffer -> buffers whose candidates count on reading it
        for candidate in candidates:
            self.of[candidate.buffer].append(candidate)
            for b, _ in (*candidate.reads, *candidate.through):
                self.readers[b].add(candidate.buffer)

    def take(self, fractions: np.ndarray) -> None:
        """Each buffer takes its candidate with the largest fraction; what is missing from 1 is the fraction that keeps it."""
        best: dict[int, tuple[float, Candidate]] = {}
        kept = dict.fromkeys(self.of, 1.0)
        for i in np.flatnonzero(fractions > _SOME).tolist():
            candidate, fraction = self.candidates[i], float(fractions[i])
            kept[candidate.buffer] -= fraction
            if candidate.buffer not in best or best[candidate.buffer][0] < fraction:
                best[candidate.buffer] = fraction, candidate
        for fraction, candidate in best.values():
            if fraction > kept[candidate.buffer]:
                self._change(candidate.buffer, candidate)

    def repair(self) -> None:
        """At the highest anchor makes the change that costs the least for each byte, each change at most once, until all fits."""
        changes = _Changes(self.unplanned, self.candidates, self.taken)
        while int(self.live_bytes.max()) > self.budget_bytes:
            best = changes.best(int(self.live_bytes.argmax()))
            if best is None:
                return
            agrees = self._agrees(self.candidates[best].buffer, self.candidates[best])
            changes.use(best, taken=agrees)
            if agrees:
                self._change(self.candidates[best].buffer, self.candidates[best])

    def settle(self) -> None:
        """COVER-5: a candidate that contradicts others is replaced by the one that agrees and adds the least, if any does."""
        for candidate in sorted(self.taken.values(), key=lambda c: -c.buffer):
            if self._agrees(candidate.buffer, candidate):
                continue
            others = [other for other in self.of[candidate.buffer] if self._agrees(candidate.buffer, other)]
            self._change(
                candidate.buffer, min(others, key=lambda o: (self._added(candidate, o), o.seconds), default=None)
            )

    def _added(self, candidate: Candidate, other: Candidate) -> int:
        """The most bytes above the budget that another candidate adds at an anchor, in whole MiB."""
        self._change(candidate.buffer, other)
        above = max(int(self.live_bytes.max()) - self.budget_bytes, 0)
        self._change(candidate.buffer, candidate)
        return above // _MIB

    def _agrees(self, b: int, candidate: Candidate | None) -> bool:
        """Whether COVER-5 holds if a buffer takes this candidate."""
        if candidate is None:
            return True
        asked = {read for read, _ in (*candidate.reads, *candidate.through)}
        mine = all(read not in self.taken or not _lacks(self.taken[read], candidate) for read in asked)
        return mine and not any(_lacks(candidate, self.taken[reader]) for reader in self.readers[b] & self.taken.keys())

    def give_back(self) -> None:
        """Each buffer that leaves, the dearest first, takes the cheapest candidate that still fits, or stays."""
        for candidate in sorted(self.taken.values(), key=lambda c: (-c.seconds, c.buffer)):
            for other in (None, *sorted(self.of[candidate.buffer], key=lambda c: c.seconds)):
                if other is candidate or (other is not None and other.seconds >= candidate.seconds):
                    break
                if self._agrees(candidate.buffer, other) and self._fits(candidate, other):
                    self._change(candidate.buffer, other)
                    break

    def _fits(self, candidate: Candidate, other: Candidate | None) -> bool:
        """Whether the budget holds if a buffer takes the other candidate; None keeps it."""
        b = candidate.buffer
        before, after = self.unplanned.holds(b, candidate), self.unplanned.holds(b, other)
        edges = sorted({edge for start, end, _ in (*before, *after) for edge in (start, end + 1)})
        for start, end in itertools.pairwise(edges):
            more = _held(after, start) - _held(before, start)
            if more > 0 and int(self.live_bytes[start:end].max()) + more > self.budget_bytes:
                return False
        return True

    def _change(self, buffer: int, candidate: Candidate | None) -> None:
        before = self.taken.pop(buffer, None)
        for sign, holds in ((-1, self.unplanned.holds(buffer, before)), (1, self.unplanned.holds(buffer, candidate))):
            for start, end, size in holds:
                self.live_bytes[start : end + 1] += sign * size
        if candidate is not None:
            self.taken[buffer] = candidate


class _Changes:
    """The changes that `repair` may still make, in arrays."""

    def __init__(
        self, unplanned: UnplannedStep, candidates: Sequence[Candidate], taken: Mapping[int, Candidate]
    ) -> None:
        held = [(*h, i) for i, c in enumerate(candidates) for h in unplanned.holds(c.buffer, c)]
        kept = [(*h, b) for b in sorted({c.buffer for c in candidates}) for h in unplanned.holds(b, None)]
        self.held, self.kept = (np.array(rows, np.int64).reshape(-1, 4).T for rows in (held, kept))
        self.buffer = np.array([c.buffer for c in candidates], np.intp)
        self.seconds = np.array([c.seconds for c in candidates])
        self.unused = np.ones(len(candidates), bool)
        self.taken = np.full(len(unplanned.sizes), -1, np.intp)  # by buffer
        for i, candidate in enumerate(candidates):
            if taken.get(candidate.buffer) is candidate:
                self.taken[candidate.buffer] = i

    def best(self, anchor: int) -> int | None:
        """The index of the candidate that frees bytes at an anchor for the lowest price each; None if no candidate is left."""
        holds = _holding(self.held, anchor, len(self.buffer))
        kept = _holding(self.kept, anchor, len(self.taken))
        leaves = self.taken >= 0
        held = np.where(leaves, holds[self.taken], kept)
        paid = np.where(leaves, self.seconds[self.taken], 0.0)
        freed = held[self.buffer] - holds
        with np.errstate(divide="ignore", invalid="ignore"):
            price = (self.seconds - paid[self.buffer]) / freed
        price[(freed <= 0) | ~self.unused] = np.inf
        best = int(price.argmin())
        return None if price[best] == np.inf else best

    def use(self, best: int, *, taken: bool) -> None:
        """Counts a candidate as tried, and as taken."""
        self.unused[best] = False
        if taken:
            self.taken[self.buffer[best]] = best


def _lacks(candidate: Candidate, reader: Candidate) -> bool:
    """Whether `reader` counts on a read that is impossible under this candidate, or on recomputing what it swaps (COVER-5)."""
    if any(b == candidate.buffer and not candidate.readable(anchor) for b, anchor in reader.reads):
        return True
    wanted = [anchor for b, anchor in reader.through if b == candidate.buffer and not candidate.readable(anchor)]
    return any(candidate.choice.mode is Mode.SWAP or candidate.prolonged(anchor) for anchor in wanted)


def _holding(holds: np.ndarray, anchor: int, count: int) -> np.ndarray:
    """For each owner of (start, end, bytes, owner) the bytes that it holds at an anchor: shape (count,)."""
    start, end, size, owner = holds
    here = (start <= anchor) & (anchor <= end)
    return np.bincount(owner[here], size[here], minlength=count)


def _held(holds: Iterable[tuple[int, int, int]], anchor: int) -> int:
    return sum(size for start, end, size in holds if start <= anchor <= end)
