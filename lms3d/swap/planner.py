"""Memory limit -> plan: which large buffers to keep, swap or recompute, and when. No TensorFlow here.

Greedy descent with repair, against the schedule of `schedule.build`:
 1. While the peak is above the budget, look at the event of the peak. Every buffer that is live there but not read or
    written there can be moved away: swapped, recomputed, brought back later, written out at once, or split into more copies.
 2. Take the move that removes the most excess bytes for the least added time.
 3. When the bytes fit, give back what is not needed any more: undo each move that still fits, the slowest first.
In a pool the schedule's allocations are replayed (`bfc`); where the pieces do not fit, the budget is lowered.
The smallest peak that the descent can reach (budget 0) is the floor: below it nothing trains.
Swapping against recomputing as one trade-off follows Capuchin (ASPLOS 2020) and POFO (NeurIPS 2021); unlike POFO this is
a heuristic without a guarantee.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lms3d.swap import bfc
from lms3d.swap.cost import Machine
from lms3d.swap.problem import Problem
from lms3d.swap.schedule import KEEP, SPLIT, Choice, Copy, Mode, Schedule, build

TRIED_MOVES = 8  # per round: the most promising ones are simulated
PLANNING_SECONDS = 10.0
# What stays unplanned: the executor's own small buffers, and swaps that end earlier or later than planned.
RESERVE = 0.04
# A pool wastes part of itself beyond what `bfc` sees: a small tensor in the wrong place makes the next large one take a
# chunk that is almost twice its size. Room for most of one such accident is left, and
# counted in the peak. Measured with isensee2017 at 64^3, 96^3 and 192^3: predicted / real peak is 0.9 to 1.1.
ACCIDENT = 0.7  # of the largest buffer, as far as the allocator lets it happen
# Near the floor accidents come together. The limit that is named as the smallest has this much room; measured: with
# isensee2017 at 64^3 and 96^3 it trains, at 10 % less it does not always.
FLOOR_MARGIN = 1.2
LOWER = 0.975  # each further try, when a plan fits by its bytes but not as pieces in the pool


@dataclass(frozen=True)
class Solution:
    """What the planner found. `fits` is False where even the best plan does not fit in `limit_bytes`.

    peak_bytes: predicted peak; in a pool with the allocator's rounding, otherwise the sum of the live buffers.
    """

    problem: Problem
    choices: dict[int, Choice]
    schedule: Schedule
    limit_bytes: int
    peak_bytes: int
    fits: bool


def usable_bytes(problem: Problem, limit_bytes: int, pool: str) -> int:
    """What a plan may use of a limit."""
    return int(limit_bytes * (1 - RESERVE)) - _accident_bytes(problem, pool)


def _accident_bytes(problem: Problem, pool: str) -> int:
    largest = max((b.bytes for b in problem.buffers), default=0)
    return 0 if pool == "none" else int(ACCIDENT * min(largest, 4 * bfc.MOST_WASTE))


def _check(problem: Problem, choices: dict[int, Choice], schedule: Schedule, limit_bytes: int, pool: str) -> Solution:
    usable = usable_bytes(problem, limit_bytes, pool)
    if pool == "none":
        return Solution(problem, choices, schedule, limit_bytes, schedule.peak_bytes, schedule.peak_bytes <= usable)
    fit = bfc.replay(problem, schedule, usable, pool)
    peak = max(fit.peak_bytes, schedule.peak_bytes) + _accident_bytes(problem, pool)
    return Solution(problem, choices, schedule, limit_bytes, peak, fit.fits and schedule.peak_bytes <= usable)


def fits(solution: Solution, pool: str) -> bool:
    """True where a solution fits in its limit."""
    return _check(solution.problem, solution.choices, solution.schedule, solution.limit_bytes, pool).fits


def needed_bytes(problem: Problem, schedule: Schedule, pool: str) -> int:
    """The smallest limit that a schedule fits in, in whole MiB."""
    # The first regions of a CPU's pool are lost to what is planned; next to a small step they are not small.
    least = max(schedule.peak_bytes, 2 * bfc.FIRST_REGIONS_BYTES if pool == "split" else 1)
    for percent in range(100, 400):
        wanted = (least * percent // 100 + _accident_bytes(problem, pool)) / (1 - RESERVE)
        limit = -int(-wanted // (1 << 20)) * (1 << 20)
        if _check(problem, {}, schedule, limit, pool).fits:
            return limit
    raise AssertionError("a pool of four times the bytes holds everything")


def solve(
    problem: Problem, limit_bytes: int, machine: Machine, *, pool: str = "none", seconds: float = PLANNING_SECONDS
) -> Solution:
    """The fastest plan found that fits in the limit; the lowest one where none does.

    pool: one of `bfc.POOLS`; in a pool buffers must fit as pieces, too.
    """
    deadline = time.monotonic() + seconds
    budget = usable_bytes(problem, limit_bytes, pool)
    choices: dict[int, Choice] = {}
    schedule = build(problem, choices, machine)
    while True:
        choices, schedule = _descend(problem, choices, schedule, budget, machine, deadline)
        solution = _check(problem, choices, schedule, limit_bytes, pool)
        if schedule.peak_bytes <= budget:
            lighter = _check(
                problem, *_give_back(problem, choices, schedule, budget, machine, deadline), limit_bytes, pool
            )
            solution = lighter if lighter.fits else solution
        if solution.fits or schedule.peak_bytes > budget or time.monotonic() > deadline:
            return solution
        budget = int(schedule.peak_bytes * LOWER)


def floor(problem: Problem, machine: Machine, *, pool: str = "none") -> tuple[Solution, int]:
    """The plan with the smallest peak that the descent reaches, and the smallest limit that it fits in."""
    start = build(problem, {}, machine)
    choices, schedule = _descend(problem, {}, start, 0, machine, time.monotonic() + PLANNING_SECONDS)
    limit = needed_bytes(problem, schedule, pool)
    if pool != "none":
        limit = -int(-limit * FLOOR_MARGIN // (1 << 20)) * (1 << 20)
    return _check(problem, choices, schedule, limit, pool), limit


def _descend(
    problem: Problem,
    choices: dict[int, Choice],
    schedule: Schedule,
    budget_bytes: int,
    machine: Machine,
    deadline: float,
) -> tuple[dict[int, Choice], Schedule]:
    """Rules 1 and 2: the first choices below the budget, else the lowest that were met."""
    best = (choices, schedule)
    while problem.anchors and schedule.peak_bytes > budget_bytes and time.monotonic() < deadline:
        found = _best_move(problem, choices, schedule, budget_bytes, machine)
        if found is None:
            break
        choices, schedule = found
        if schedule.peak_bytes < best[1].peak_bytes:
            best = (choices, schedule)
    return best


def _excess(schedule: Schedule, budget_bytes: int) -> float:
    """How far a schedule is above the budget: the area above it, and the peak, which counts like 50 events."""
    over = np.maximum(schedule.live_bytes - budget_bytes, 0)
    return float(over.sum() + 50 * over.max())


def _best_move(
    problem: Problem, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, machine: Machine
) -> tuple[dict[int, Choice], Schedule] | None:
    """Rules 1 and 2. None when no move lowers the excess."""
    peak_budget = budget_bytes if budget_bytes > 0 else int(schedule.peak_bytes * 0.97)
    before = _excess(schedule, peak_budget)
    moves = sorted(_moves(problem, choices, schedule), key=lambda m: -m[0])
    best, best_score = None, 0.0
    for start in range(0, len(moves), TRIED_MOVES):
        for _, buffer, choice in moves[start : start + TRIED_MOVES]:
            tried = {**choices, buffer: choice}
            after = build(problem, tried, machine)
            gained = before - _excess(after, peak_budget)
            score = gained / (max(after.seconds - schedule.seconds, 0.0) + 1e-3)
            if gained > 0 and score > best_score:
                best, best_score = (tried, after), score
        if best is not None:
            break
    return best


def _moves(problem: Problem, choices: dict[int, Choice], schedule: Schedule) -> Iterator[tuple[float, int, Choice]]:
    """(promise, buffer, new choice) for every buffer that is live at the peak without being used there."""
    event = int(schedule.live_bytes.argmax())
    at = schedule.events[event]
    for copy in schedule.copies:
        if not copy.start <= event <= copy.end:
            continue
        buffer, choice = problem.buffers[copy.buffer], choices.get(copy.buffer, KEEP)
        reads_here = at in copy.readers or (
            copy.number == 0 and at.anchor == buffer.defined and at.buffer == len(problem.buffers)
        )
        if reads_here:
            continue
        promise = buffer.bytes
        if choice.mode is Mode.KEEP:
            if buffer.recomputable:
                yield promise / (buffer.seconds + 1e-4), copy.buffer, Choice(Mode.RECOMPUTE)
            if buffer.swappable:
                yield promise / (buffer.bytes / 1e9 + 1e-4), copy.buffer, Choice(Mode.SWAP)
            continue
        yield from _tighter(promise, copy, choice, event)
        other = Mode.SWAP if choice.mode is Mode.RECOMPUTE else Mode.RECOMPUTE
        if (buffer.swappable if other is Mode.SWAP else buffer.recomputable) and choice.mode is Mode.RECOMPUTE:
            yield promise * 0.1, copy.buffer, Choice(other, split=choice.split)


def _tighter(promise: float, copy: Copy, choice: Choice, event: int) -> Iterator[tuple[float, int, Choice]]:
    if choice.mode is Mode.SWAP and copy.number and event < copy.first_read and not choice.tight_in:
        yield promise * 1e4, copy.buffer, replace(choice, tight_in=True)
    if choice.mode is Mode.SWAP and copy.number == 0 and not choice.tight_out:
        yield promise * 1e4, copy.buffer, replace(choice, tight_out=True)
    if choice.split > 1:
        yield promise, copy.buffer, replace(choice, split=1)


def _give_back(
    problem: Problem,
    choices: dict[int, Choice],
    schedule: Schedule,
    budget_bytes: int,
    machine: Machine,
    deadline: float,
) -> tuple[dict[int, Choice], Schedule]:
    """Rule 3."""

    def cost(item: tuple[int, Choice]) -> float:
        buffer = problem.buffers[item[0]]
        return buffer.seconds if item[1].mode is Mode.RECOMPUTE else buffer.bytes / machine.swap_out_bytes_per_second

    for b, choice in sorted(choices.items(), key=cost, reverse=True):
        for easier in _easier(choice):
            if time.monotonic() > deadline:
                return choices, schedule
            tried = {**choices, b: easier}
            if easier == KEEP:
                del tried[b]
            after = build(problem, tried, machine)
            if after.peak_bytes <= budget_bytes and after.seconds <= schedule.seconds:
                choices, schedule = tried, after
                break
    return choices, schedule


def _easier(choice: Choice) -> Iterator[Choice]:
    yield KEEP
    if choice.tight_out or choice.tight_in:
        yield replace(choice, tight_out=False, tight_in=False)
        yield replace(choice, tight_out=False)
        yield replace(choice, tight_in=False)
    if choice.split != SPLIT:
        yield replace(choice, split=SPLIT)
