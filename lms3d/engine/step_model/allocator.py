"""TensorFlow's best-fit-with-coalescing allocator, as far as it decides what fits. No TensorFlow here.

Counting bytes is too optimistic: the allocator rounds up, hands out a larger free chunk whole when less than half of it would
be left over, and needs one piece for one tensor (tensorflow/core/common_runtime/bfc_allocator.cc, in newer sources
xla/tsl/framework/bfc_allocator.cc):

BFC-1  Sizes are rounded up to 256 bytes.
BFC-2  The smallest free chunk that is large enough is taken, among equals the one at the lowest address.
BFC-3  It is split when it is at least twice as large as wanted, or 128 MiB larger.
BFC-4  A freed chunk merges with free neighbours.

A GPU's pool is one region. A CPU's is laid out in regions (`lms3d.device.pool_layout`): the small one fills up with weights
and slots, the large one holds the planned tensors. Crumbs have a region of their own, in pieces that nothing else fits into: a
scalar in a hole of exactly the size of a large tensor would cost that size. In a GPU's pool crumbs are replayed like the rest.

Swapped memory changes hands in the planned order (EMIT-4), which is the order in which the host enqueues the step: a swap-in takes
its memory at the event that it starts with, an original gives its own back just before the event that waits for its swap-out.
How long the copies take decides nothing here.

A plan must not fit by coincidence. Small ops run a little early or late, batches arrive at any time on a CPU, and gaps between
weights are never quite as predicted. `place` replays the schedule as planned, and `PERTURBED` times with such shifts, drawn with
fixed seeds, in somewhat smaller pools; every replay must fit.
"""

from __future__ import annotations

import bisect
import random
from dataclasses import dataclass
from typing import NamedTuple

from lms3d.device.pool_layout import ALIGNMENT, CRUMB_BYTES, FIRST_REGIONS_BYTES, small_region_bytes
from lms3d.engine.step_model import ledger
from lms3d.engine.step_model.decisions import Mode
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Copy, Schedule
from lms3d.engine.tuning import PERTURBED, SMALL_SHIFT, SMALLEST_PIECE

MOST_WASTE = 128 << 20  # BFC-3
POOLS = ("none", "single", "split")  # no pool (malloc); a GPU's; a CPU's with a hard limit


class Pool:
    """One or more regions. `allocate` and `take` return an address, or None where nothing fits."""

    def __init__(self, size_bytes: int) -> None:
        self.free = [(size_bytes, 0)]  # (size, address), sorted: best fit first
        self.at: dict[int, int] = {0: size_bytes}  # free chunks by address
        self.ends: dict[int, int] = {size_bytes: 0}  # their end -> address
        self.taken: dict[int, int] = {}  # address -> chunk size
        self.in_use = self.peak = 0

    def add_region(self, size_bytes: int) -> None:
        """One more empty region; its chunks merge with none of another."""
        self._add(size_bytes, max(self.ends, default=0) + ALIGNMENT)

    def allocate(self, wanted: int) -> int | None:
        wanted = -(-max(wanted, 1) // ALIGNMENT) * ALIGNMENT  # BFC-1
        i = bisect.bisect_left(self.free, (wanted, -1))  # BFC-2
        if i == len(self.free):
            return None
        size, address = self.free[i]
        self._remove(size, address)
        if size >= 2 * wanted or size - wanted >= MOST_WASTE:  # BFC-3
            self._add(size - wanted, address + wanted)
            size = wanted
        return self._hand_out(size, address)

    def take(self, size: int) -> int | None:
        """As `allocate`, for many small tensors that together fill `size` bytes: BFC-3 wastes nothing on them."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        i = bisect.bisect_left(self.free, (size, -1))
        if i == len(self.free) or not size:
            return None if size else 0
        free, address = self.free[i]
        self._remove(free, address)
        self._add(free - size, address + size)
        return self._hand_out(size, address)

    def _hand_out(self, size: int, address: int) -> int:
        self.taken[address] = size
        self.in_use += size
        self.peak = max(self.peak, self.in_use)
        return address

    def release(self, address: int) -> None:
        size = self.taken.pop(address)
        self.in_use -= size
        after = self.at.get(address + size)  # BFC-4
        if after is not None:
            self._remove(after, address + size)
            size += after
        before = self.ends.get(address)
        if before is not None:
            size += self.at[before]
            self._remove(self.at[before], before)
            address = before
        self._add(size, address)

    def _add(self, size: int, address: int) -> None:
        if size:
            bisect.insort(self.free, (size, address))
            self.at[address] = size
            self.ends[address + size] = address

    def _remove(self, size: int, address: int) -> None:
        self.free.pop(bisect.bisect_left(self.free, (size, address)))
        del self.at[address], self.ends[address + size]


@dataclass(frozen=True)
class Placement:
    """Whether every buffer found a place. peak_bytes: most bytes in use, rounding included (up to where it failed).

    replays: how many that took.
    """

    fits: bool
    peak_bytes: int
    replays: int = 1


def place(problem: Problem, schedule: Schedule, limit_bytes: int, pool_kind: str, *, margin: float = 0.0) -> Placement:
    """Whether a schedule fits in a pool as planned, and with small shifts; the peak as planned.

    margin: the shifted replays must fit in smaller pools, by this share at most. The piece at the end of a pool may be handed
    out whole to a tensor half its size, so its size decides what that wastes.
    """
    held = _held(problem, schedule, pool_kind)  # the same in every replay
    peak = 0
    for seed in range(PERTURBED, -1, -1):  # the smallest pool first: what does not fit mostly fails there
        found = replay(problem, schedule, int(limit_bytes * (1 - margin * seed / PERTURBED)), pool_kind, seed, held)
        if not found.fits:
            return Placement(False, max(peak, found.peak_bytes), PERTURBED + 1 - seed)
        peak = found.peak_bytes if seed == 0 else max(peak, found.peak_bytes)
    return Placement(True, peak, PERTURBED + 1)


class _Held(NamedTuple):
    """The lives that the order fixes, and per event the indices of those that start (in allocation order) and that end."""

    lives: list[_Life]
    starts: list[list[int]]
    ends: list[list[int]]


def replay(
    problem: Problem, schedule: Schedule, limit_bytes: int, pool_kind: str, seed: int = 0, held: _Held | None = None
) -> Placement:
    """Replay a schedule's allocations in a pool of `limit_bytes` ("single" or "split"); seed 0: exactly as planned."""
    batches = problem.graph.batches if schedule.events else ()
    pool = _new_pool(problem.base_bytes - sum(batches), limit_bytes, pool_kind)
    if pool is None:
        return Placement(False, problem.base_bytes)
    shifts = random.Random(seed) if seed else None
    loose = _loose_lives(problem, schedule, shifts, pool_kind)
    held = held or _held(problem, schedule, pool_kind)
    last = len(schedule.events) - 1
    loose += [_Life(size, shifts.randint(0, last) if shifts else 0, last, _SMALL) for size in batches]
    lives, starts, ends = [*held.lives, *loose], [*held.starts], [*held.ends]
    for i, life in enumerate(loose, len(held.lives)):
        starts[life.start] = sorted([*starts[life.start], i], key=lambda i: lives[i].turn)
        ends[life.end] = [*ends[life.end], i]
    place: list[int | None] = [None] * len(lives)
    for starting, ending in zip(starts, ends, strict=True):
        for i in starting:
            if lives[i].bytes:  # else mapped, or in the chunk of the input that it overwrites
                place[i] = pool.allocate(lives[i].bytes)
                if place[i] is None:
                    return Placement(False, pool.peak)
        for i in ending:
            at, heir = place[i], lives[i].heir
            if heir is not None:
                place[heir] = at
            elif at is not None:
                pool.release(at)
    return Placement(True, pool.peak)


def _new_pool(base_bytes: int, limit_bytes: int, pool_kind: str) -> Pool | None:
    """The pool before the step, with the resident bytes in it. None where not even they fit."""
    if pool_kind == "single":
        pool = Pool(limit_bytes)
        return None if pool.take(base_bytes) is None else pool
    small = small_region_bytes(limit_bytes)
    large = limit_bytes - small - FIRST_REGIONS_BYTES
    if base_bytes - small > large:
        return None
    pool = Pool(max(large, 0))
    pool.add_region(small)
    inside = min(small, base_bytes) // ALIGNMENT * ALIGNMENT
    if pool.take(inside) is None or pool.take(base_bytes - inside) is None:
        return None
    return pool


class _Life(NamedTuple):
    """A chunk's life in events, both inclusive. bytes 0: taken over from another, or mapped; heir: who takes it over.

    turn: the order among lives that start with the same event.
    """

    bytes: int
    start: int
    end: int
    turn: int
    heir: int | None = None


_SWAP_IN, _SMALL, _OUTPUT, _WORKSPACE = range(4)


def _made_for(problem: Problem, schedule: Schedule, anchor: int, gradient: int, event: int) -> int:
    """The event that makes what `gradient` reads of `anchor`: `event`, or the one that computes it again."""
    reader = problem.anchor_events[gradient]
    return next((c.start for c in _made_again(problem, schedule, anchor) if reader in c.readers), event)


def _made_again(problem: Problem, schedule: Schedule, anchor: int) -> list[Copy]:
    return [c for c in schedule.copies if c.mode is Mode.RECOMPUTE and problem.buffers[c.buffer].defined == anchor]


def _anchor_at(schedule: Schedule) -> list[int]:
    """The event of each anchor."""
    return [i for i, event in enumerate(schedule.events) if event.is_anchor]


def _smallest(pool_kind: str) -> int:
    """Bytes of the smallest buffer that is replayed: in a CPU's pool crumbs have holes of their own."""
    return CRUMB_BYTES + 1 if pool_kind == "split" else SMALLEST_PIECE


def _loose_lives(problem: Problem, schedule: Schedule, shifts: random.Random | None, pool_kind: str) -> list[_Life]:
    """The small buffers, without a place in the order."""
    at = _anchor_at(schedule)
    lives = []
    small = [s for s in problem.small if s.bytes >= _smallest(pool_kind) and not s.hidden]
    for size, first, end, _ in small:
        if shifts is not None:
            first = max(0, first - shifts.randrange(SMALL_SHIFT + 1))
            end = min(len(at) - 1, end + shifts.randrange(SMALL_SHIFT + 1))
        lives.append(_Life(size, at[first], at[end], _SMALL))
    return lives


def _held(problem: Problem, schedule: Schedule, pool_kind: str) -> _Held:
    lives = _held_lives(problem, schedule, pool_kind)
    starts, ends = ledger.by_event(lives, len(schedule.events))
    return _Held(lives, [sorted(s, key=lambda i: lives[i].turn) for s in starts], ends)


def _held_lives(problem: Problem, schedule: Schedule, pool_kind: str) -> list[_Life]:
    """Workspaces and the copies of large buffers."""
    at, smallest = _anchor_at(schedule), _smallest(pool_kind)
    lives = []
    for size, first, end, hidden in problem.small:
        if hidden and size >= smallest:
            read = _made_for(problem, schedule, first, end, at[first])
            made = [at[first], *(c.start for c in _made_again(problem, schedule, first))]
            lives += [_Life(size, e, at[end] if e == read else e, _WORKSPACE) for e in made]
    workspaces = [(int(size), at[anchor]) for anchor, size in enumerate(problem.workspace_bytes)]
    again = (copy for copy in schedule.copies if copy.mode is Mode.RECOMPUTE)
    workspaces += [(problem.buffers[copy.buffer].workspace_bytes, copy.start) for copy in again]
    lives += [_Life(size, event, event, _WORKSPACE) for size, event in workspaces if size >= smallest]
    number = {id(c): len(lives) + i for i, c in enumerate(schedule.copies)}
    heirs = {id(c.heir) for c in schedule.copies if c.heir is not None}
    given = {id(c.heir) for c in schedule.copies if c.heir is not None and c.end < c.start}
    for copy in schedule.copies:
        start, end, heir = copy.start, copy.end, None if id(copy) in given else copy.heir
        if heir is not None and end < start:  # it takes the memory for its heir
            end, heir = heir.end, heir.heir
        size = 0 if id(copy) in heirs else copy.bytes
        turn = _SWAP_IN if copy.mode is Mode.SWAP else _OUTPUT
        lives.append(_Life(size, start, end, turn, None if heir is None else number[id(heir)]))
    return lives
