"""A schedule's allocations, replayed in a pool: does every buffer find a piece? No TensorFlow here.

Swapped memory changes hands in the planned order (EMIT-4), which is the order in which the host enqueues the step. A swap-in takes
its memory at the event that it starts with. An original gives its memory back just before the event that waits for its swap-out.
How long the copies take decides nothing here, but for the replay of a simulated step (`replay_changes`), which no schedule orders.

A plan must not fit by coincidence. Small ops run a little early or late, batches arrive at any time on a CPU, and gaps between
weights are never quite as predicted. `place` replays the schedule as planned, and `PERTURBED` times with such shifts, drawn with
fixed seeds, in somewhat smaller pools; every replay must fit.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lms3d.engine.ir import producer_name
from lms3d.engine.liveness import Change
from lms3d.engine.step_model import ledger
from lms3d.engine.step_model.allocator import PoolRegions
from lms3d.engine.step_model.decisions import Mode
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Copy, Schedule
from lms3d.engine.tuning import PERTURBED, SMALL_SHIFT


@dataclass(frozen=True)
class Placement:
    """Whether every buffer found a piece.

    peak_bytes: the most bytes in use, rounding included, up to the moment at which a buffer found none. replays: how many it took.
    """

    fits: bool
    peak_bytes: int
    replays: int = 1


def place(
    problem: Problem, schedule: Schedule, limit_bytes: int, regions: PoolRegions, *, margin: float = 0.0
) -> Placement:
    """Whether a schedule fits in a pool of `limit_bytes`, as planned and with small shifts; the peak as planned.

    margin: the shifted replays must fit in pools that are smaller by this share at most. The piece at the end of a pool may be
    handed out whole to a tensor half its size, so the size of that piece decides how much is wasted.
    """
    ordered = _ordered(problem, schedule, regions)  # the same in every replay
    peak = 0
    for seed in range(PERTURBED, -1, -1):  # the smallest pool first: a schedule that does not fit mostly fails there
        smaller = int(limit_bytes * (1 - margin * seed / PERTURBED))
        placed = replay(problem, schedule, smaller, regions, seed, ordered)
        if not placed.fits:
            return Placement(False, max(peak, placed.peak_bytes), PERTURBED + 1 - seed)
        peak = placed.peak_bytes if seed == 0 else max(peak, placed.peak_bytes)
    return Placement(True, peak, PERTURBED + 1)


class _Ordered(NamedTuple):
    """The lives that the plan orders, and for each event the indices of those that start (in allocation order) and that end."""

    lives: list[Life]
    starts: list[list[int]]
    ends: list[list[int]]


def replay(
    problem: Problem,
    schedule: Schedule,
    limit_bytes: int,
    regions: PoolRegions,
    seed: int = 0,
    ordered: _Ordered | None = None,
) -> Placement:
    """One replay in a pool of `limit_bytes`; with seed 0 exactly as planned, else with shifts drawn by that seed."""
    batches = problem.graph.batches if schedule.events else ()
    allocator = regions.begin(problem.base_bytes - sum(batches), limit_bytes)
    if allocator is None:
        return Placement(False, problem.base_bytes)
    shifts = random.Random(seed) if seed else None
    loose = _loose_lives(problem, schedule, shifts, regions)
    ordered = ordered or _ordered(problem, schedule, regions)
    last = len(schedule.events) - 1
    loose += [Life(size, shifts.randint(0, last) if shifts else 0, last, _SMALL) for size in batches]
    lives, starts, ends = [*ordered.lives, *loose], [*ordered.starts], [*ordered.ends]
    for i, life in enumerate(loose, len(ordered.lives)):
        starts[life.start] = sorted([*starts[life.start], i], key=lambda i: lives[i].turn)
        ends[life.end] = [*ends[life.end], i]
    address: list[int | None] = [None] * len(lives)
    for starting, ending in zip(starts, ends, strict=True):
        for i in starting:
            if lives[i].bytes:  # else mapped, or in the chunk of the input that it overwrites
                address[i] = allocator.allocate(lives[i].bytes)
                if address[i] is None:
                    return Placement(False, allocator.peak)
        for i in ending:
            chunk, heir = address[i], lives[i].heir
            if heir is not None:
                address[heir] = chunk
            elif chunk is not None:
                allocator.release(chunk)
    return Placement(True, allocator.peak)


def replay_changes(changes: Iterable[Change], base_bytes: int, limit_bytes: int, regions: PoolRegions) -> Placement:
    """The replay of a simulated step (`simulate`), which no schedule orders. base_bytes: what is resident before the step."""
    allocator = regions.begin(base_bytes, limit_bytes)
    if allocator is None:
        return Placement(False, base_bytes)
    address: dict[str, int] = {}
    for name, size, source in changes:
        if source in address:
            address[name] = address.pop(source)
        elif size < 0 and name in address:
            allocator.release(address.pop(name))
        elif size >= regions.smallest_bytes:
            chunk = allocator.allocate(size)
            if chunk is None:
                return Placement(False, allocator.peak)
            address[name] = chunk
    return Placement(True, allocator.peak)


class Life(NamedTuple):
    """The life of a chunk in events, both included. bytes: 0 if the chunk is taken over from another life, or mapped.

    turn: the order among lives that start with the same event. heir: the index of the life that takes the chunk over.
    """

    bytes: int
    start: int
    end: int
    turn: int
    heir: int | None = None


_SWAP_IN, _SMALL, _OUTPUT, _WORKSPACE = range(4)


def _maker_event(problem: Problem, schedule: Schedule, anchor: int, gradient: int, event: int) -> int:
    """The event that makes what `gradient` reads of `anchor`: `event`, or the one that recomputes it."""
    reader = problem.anchor_events[gradient]
    return next((c.start for c in _recomputed(problem, schedule, anchor) if reader in c.readers), event)


def _recomputed(problem: Problem, schedule: Schedule, anchor: int) -> list[Copy]:
    """The recomputed copies of what an anchor makes."""
    return [c for c in schedule.copies if c.mode is Mode.RECOMPUTE and problem.buffers[c.buffer].defined == anchor]


def _anchor_events(schedule: Schedule) -> list[int]:
    """The event of each anchor."""
    return [i for i, event in enumerate(schedule.events) if event.is_anchor]


def _loose_lives(
    problem: Problem, schedule: Schedule, shifts: random.Random | None, regions: PoolRegions
) -> list[Life]:
    """The lives of the small buffers, which have no place in the order."""
    at = _anchor_events(schedule)
    lives = []
    small = [s for s in problem.small if s.bytes >= regions.smallest_bytes and not s.hidden]
    for size, first, end, _ in small:
        if shifts is not None:
            first = max(0, first - shifts.randrange(SMALL_SHIFT + 1))
            end = min(len(at) - 1, end + shifts.randrange(SMALL_SHIFT + 1))
        lives.append(Life(size, at[first], at[end], _SMALL))
    return lives


def _ordered(problem: Problem, schedule: Schedule, regions: PoolRegions) -> _Ordered:
    lives = ordered_lives(problem, schedule, regions)
    starts, ends = ledger.by_event(lives, len(schedule.events))
    return _Ordered(lives, [sorted(s, key=lambda i: lives[i].turn) for s in starts], ends)


def ordered_lives(problem: Problem, schedule: Schedule, regions: PoolRegions) -> list[Life]:
    """The lives of workspaces, and behind them those of `schedule.copies`, in the same order."""
    at, smallest = _anchor_events(schedule), regions.smallest_bytes
    lives = []
    for size, first, end, hidden in problem.small:
        if hidden and size >= smallest:
            read = _maker_event(problem, schedule, first, end, at[first])
            makers = [at[first], *(c.start for c in _recomputed(problem, schedule, first))]
            lives += [Life(size, e, at[end] if e == read else e, _WORKSPACE) for e in makers]
    workspaces = [
        (name, int(size), at[i])
        for i, (name, size) in enumerate(zip(problem.anchors, problem.workspace_bytes, strict=True))
    ]
    recomputed = [(problem.buffers[copy.buffer], copy.start) for copy in schedule.copies if copy.mode is Mode.RECOMPUTE]
    workspaces += [(producer_name(buffer.root), buffer.workspace_bytes, event) for buffer, event in recomputed]
    for maker, size, event in workspaces:
        if size >= smallest:
            early = problem.graph.by_name[maker].type in regions.late_types
            lives.append(Life(size, event, event, _SMALL if early else _WORKSPACE))
    number = {id(c): len(lives) + i for i, c in enumerate(schedule.copies)}
    heirs = {id(c.heir) for c in schedule.copies if c.heir is not None}
    given = {id(c.heir) for c in schedule.copies if c.heir is not None and c.end < c.start}
    for copy in schedule.copies:
        start, end, heir = copy.start, copy.end, None if id(copy) in given else copy.heir
        if heir is not None and end < start:  # it takes the memory for its heir
            end, heir = heir.end, heir.heir
        size = 0 if id(copy) in heirs else copy.bytes
        turn = _SWAP_IN if copy.mode is Mode.SWAP else _OUTPUT
        lives.append(Life(size, start, end, turn, None if heir is None else number[id(heir)]))
    return lives
