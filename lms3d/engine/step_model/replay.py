"""A schedule's allocations, replayed in a pool: does every buffer find a piece? No TensorFlow here.

Swapped memory changes hands in the planned order (EMIT-4), which is the order in which the host enqueues the step. A swap-in takes
its memory at the event that it starts with. An original gives its memory back just before the event that waits for its swap-out.
How long the copies take decides nothing here, but for the replay of a simulated step (`replay_changes`), which no schedule orders.

A plan must not fit by coincidence. Small ops run a little early or late, batches arrive at any time on a CPU, and gaps between
weights are never quite as predicted. `place` replays the schedule as planned, and `PERTURBED` times with such shifts, drawn with
fixed seeds, in somewhat smaller pools; every replay must fit. If one does not, `unplaced_bytes` says when and by how much.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lms3d.engine.effort import Account
from lms3d.engine.ir import producer_name
from lms3d.engine.liveness import Change
from lms3d.engine.step_model import ledger
from lms3d.engine.step_model.allocator import PoolRegions
from lms3d.engine.step_model.decisions import Mode
from lms3d.engine.step_model.problem import Problem, Small
from lms3d.engine.step_model.schedule import Copy, Schedule
from lms3d.engine.tuning import HELD_OUT, PERTURBED, SMALL_SHIFT


@dataclass(frozen=True)
class Placement:
    """Whether every buffer found a piece.

    peak_bytes: the most bytes in use, rounding included, up to the event at which a buffer found none.
    """

    fits: bool
    peak_bytes: int


def place(
    problem: Problem,
    schedule: Schedule,
    limit_bytes: int,
    regions: PoolRegions,
    *,
    margin: float = 0.0,
    account: Account | None = None,
) -> Placement:
    """Whether a schedule fits in a pool of `limit_bytes`, as planned and with small shifts; the peak as planned.

    margin: the shifted replays must fit in pools that are smaller by this share at most. The piece at the end of a pool may be
    handed out whole to a tensor half its size, so the size of that piece decides how much is wasted. account: pays for the replays.
    """
    ordered = _ordered(problem, schedule, regions)
    peak = 0
    for seed, smaller in _pools(limit_bytes, margin):
        placed = replay(problem, schedule, smaller, regions, seed, ordered, account)
        if not placed.fits:
            return Placement(False, max(peak, placed.peak_bytes))
        peak = placed.peak_bytes if seed == 0 else max(peak, placed.peak_bytes)
    return Placement(True, peak)


def unplaced_bytes(
    problem: Problem,
    schedule: Schedule,
    limit_bytes: int,
    regions: PoolRegions,
    *,
    most_bytes: int,
    margin: float = 0.0,
    account: Account | None = None,
) -> Iterator[np.ndarray]:
    """For each replay of `place`, the bytes at each event that find no piece; without shifts, also bytes in use above `most_bytes`:
    int64, shape (events,). All 0 if the schedule fits. A replay goes on without them.
    """
    ordered, events = _ordered(problem, schedule, regions), len(schedule.events)
    for seed, smaller in _pools(limit_bytes, margin):
        replayed = _replayed(problem, schedule, smaller, regions, seed, ordered, account, to_the_end=True)
        if replayed is None:
            yield np.full(events, limit_bytes)
            continue
        above = np.maximum(np.array(replayed.in_use, np.int64) - most_bytes, 0) if seed == 0 else 0
        yield ledger.live_bytes(replayed.unplaced, events) + above


def _pools(limit_bytes: int, margin: float) -> Iterator[tuple[int, int]]:
    """The seed and the bytes of each replay, the smallest pool first: a schedule that does not fit mostly fails there."""
    for seed in range(PERTURBED, -1, -1):
        yield seed, int(limit_bytes * (1 - margin * seed / PERTURBED))


def steady(
    problem: Problem, schedule: Schedule, limit_bytes: int, regions: PoolRegions, account: Account | None = None
) -> bool:
    """Whether a schedule also fits with shifts that `place` does not try. A plan that was changed until it passed `place` may fit
    with its shifts alone."""
    ordered = _ordered(problem, schedule, regions)
    loose = ordered.small or problem.graph.batches  # else there is nothing to shift
    seeds = range(PERTURBED + 1, PERTURBED + 1 + (HELD_OUT if loose else 0))
    return all(replay(problem, schedule, limit_bytes, regions, seed, ordered, account).fits for seed in seeds)


class _Ordered(NamedTuple):
    """All that the replays of a schedule share: the lives that the plan orders, for each event the indices of lives that start
    (in allocation order) and that end, the event of each anchor, and the small buffers, which have no place in the order."""

    lives: list[Life]
    starts: list[list[int]]
    ends: list[list[int]]
    at: list[int]
    small: list[Small]


def replay(
    problem: Problem,
    schedule: Schedule,
    limit_bytes: int,
    regions: PoolRegions,
    seed: int = 0,
    ordered: _Ordered | None = None,
    account: Account | None = None,
) -> Placement:
    """One replay in a pool of `limit_bytes`; with seed 0 exactly as planned, else with shifts drawn by that seed."""
    ordered = ordered or _ordered(problem, schedule, regions)
    replayed = _replayed(problem, schedule, limit_bytes, regions, seed, ordered, account)
    if replayed is None:
        return Placement(False, problem.base_bytes)
    return Placement(not replayed.unplaced, max(replayed.in_use, default=problem.base_bytes))


class _Replayed(NamedTuple):
    """unplaced: lives that found no piece. in_use: bytes at each event, rounding included, before anything is given back."""

    unplaced: list[ledger.Block]
    in_use: list[int]


def _replayed(
    problem: Problem,
    schedule: Schedule,
    limit_bytes: int,
    regions: PoolRegions,
    seed: int,
    ordered: _Ordered,
    account: Account | None,
    *,
    to_the_end: bool = False,
) -> _Replayed | None:
    """One replay, up to the first life that finds no piece, or to the end. None if not even what is resident has room."""
    batches = problem.graph.batches if schedule.events else ()
    allocator = regions.begin(problem.base_bytes - sum(batches), limit_bytes)
    if allocator is None:
        return None
    shifts = random.Random(seed) if seed else None
    loose = _loose_lives(ordered, shifts)
    last = len(schedule.events) - 1
    loose += [Life(size, shifts.randint(0, last) if shifts else 0, last, _SMALL) for size in batches]
    lives, starts, ends = [*ordered.lives, *loose], [*ordered.starts], [*ordered.ends]
    if account is not None:
        account.charge_replay(len(lives))
    started: set[int] = set()
    for i, life in enumerate(loose, len(ordered.lives)):
        starts[life.start] = [*starts[life.start], i]
        ends[life.end] = [*ends[life.end], i]
        started.add(life.start)
    for event in started:
        starts[event].sort(key=lambda i: lives[i].turn)
    address: list[int | None] = [None] * len(lives)
    replayed = _Replayed([], [])
    for event, (starting, ending) in enumerate(zip(starts, ends, strict=True)):
        for i in starting:
            if lives[i].bytes:  # else mapped, or in the chunk of the input that it overwrites
                address[i] = allocator.allocate(lives[i].bytes)
                if address[i] is None:
                    replayed.unplaced.append(ledger.Block(lives[i].bytes, event, _last_event(lives, i)))
        replayed.in_use.append(allocator.in_use)
        if replayed.unplaced and not to_the_end:
            break
        for i in ending:
            chunk, heir = address[i], lives[i].heir
            if heir is not None:
                address[heir] = chunk
            elif chunk is not None:
                allocator.release(chunk)
    return replayed


def _last_event(lives: list[Life], i: int) -> int:
    """The event with which a chunk is given back, by the last of its heirs."""
    end, heir = lives[i].end, lives[i].heir
    while heir is not None:
        end, heir = max(end, lives[heir].end), lives[heir].heir
    return end


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


def _loose_lives(ordered: _Ordered, shifts: random.Random | None) -> list[Life]:
    """The lives of the small buffers."""
    at, last = ordered.at, len(ordered.at) - 1
    if shifts is None:
        return [Life(size, at[first], at[end], _SMALL) for size, first, end, _ in ordered.small]
    lives = []
    for size, first, end, _ in ordered.small:
        first = max(0, first - shifts.randrange(SMALL_SHIFT + 1))
        end = min(last, end + shifts.randrange(SMALL_SHIFT + 1))
        lives.append(Life(size, at[first], at[end], _SMALL))
    return lives


def _ordered(problem: Problem, schedule: Schedule, regions: PoolRegions) -> _Ordered:
    lives = ordered_lives(problem, schedule, regions)
    starts, ends = ledger.by_event(lives, len(schedule.events))
    small = [s for s in problem.small if s.bytes >= regions.smallest_bytes and not s.hidden]
    in_turn = [sorted(s, key=lambda i: lives[i].turn) for s in starts]
    return _Ordered(lives, in_turn, ends, _anchor_events(schedule), small)


def ordered_lives(problem: Problem, schedule: Schedule, regions: PoolRegions) -> list[Life]:
    """The lives of workspaces, then of `schedule.copies`, in the same order."""
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
