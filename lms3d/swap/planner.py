"""Memory limit -> plan: which large buffers to keep, swap or recompute, and when. No TensorFlow here.

Local search against the schedule of `schedule.build`, from two starts, the unplanned step and the answer of a
mixed-integer program (`exact`), and where neither leads down to the budget, from the step with all moved away:
 1. While the peak is above the budget, look at the event of the peak. Every buffer that is live there but not read or
    written there can be moved away: swapped, recomputed, brought back later, written out at once, split into more copies, or
    both swapped and recomputed (`moves`). Take the move that removes the most excess bytes for the least added cost.
 2. Where no single move helps, try pairs: a move, and then one at the event that is the highest after it.
 3. When the bytes fit, give back what is not needed any more: undo each move that still fits, the dearest first.
 4. Change one decision, hold it, repair by rule 1 and give back by rule 3; keep the result where it costs less. Until
    nothing is gained, or the evaluations are used up.
In a pool the schedule's allocations are replayed (`bfc`); where the pieces do not fit, the budget is lowered.
The limit that the lowest plan needs is the floor: below it nothing trains. Peaks are not enough to tell: among all plans
that rule 1 meets near the smallest peak, the one whose pieces need the smallest pool counts, and a little more is enough, too.

Rules 3 and 4 count what transfers cost; rules 1 and 2 take them as nearly free (`cost.TRANSFER_PRICE`), because by the true
price a descent ends on higher ground.

Rule 4 is limited by evaluations, descents by 10 s of processor time (`PLANNING_SECONDS`), and the program by nodes and by
10 s of the clock (`exact`). On a machine that is fast enough evaluations and nodes run out first: equal questions then get
equal plans, even while it is busy.
Swapping against recomputing as one trade-off follows Capuchin (ASPLOS 2020) and POFO (NeurIPS 2021). A local search gives
no guarantee; the program's lower bound, `Solution.bound_seconds`, says how far from the best a plan can be at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lms3d.swap import bfc, exact, moves
from lms3d.swap.cost import Machine
from lms3d.swap.problem import Problem
from lms3d.swap.schedule import KEEP, Choice, Mode, Schedule, build

TRIED_MOVES = 8  # per round: the most promising ones are simulated
TRIED_FIRST, TRIED_SECOND = 8, 6  # rule 2: pairs
EXCHANGED_PLANS = 2  # the cheapest that rule 4 starts from
EXCHANGED = 1000  # evaluations for rule 4, from each; one takes about 2 ms with isensee2017 at 96^3
REPAIRS = 4  # moves after each exchange
PLANNING_SECONDS = 10.0  # of processor time for rules 1 to 4, on a machine too slow for that many
# What stays unplanned: the executor's own buffers, and steps whose small ops run in yet another order.
RESERVE = 0.04
RESERVE_IN_TURN = 0.03  # of a pool whose waste is counted, too
# Where memory does not change hands in the planned order (`emit`, rule 4: on a GPU, and in a step without a plan), a pool wastes
# more than its replay foresees: a small tensor in the wrong place makes one of the largest tensors unable to use a hole of
# its own size. Room for most of one such accident is left.
ACCIDENT = 0.7  # of the largest tensor
ACCIDENT_BYTES = 3 * bfc.MOST_WASTE  # at most
LOWER = 0.975  # each further try, when a plan fits by its bytes but not as pieces in the pool
TIMELESS_SECONDS = 0.01  # of each op alike, which hides nearly all transfers
STEADY_PLANS = 4  # those that need the least; each has to fit at so many limits in a row, in steps of so much
STEADY_STEPS, STEADY_STEP_BYTES = 4, 2 << 20
STEADY_TRIED = 16
NEAR_FLOOR = 1.06  # plans with a peak up to this much above the smallest are tried as pieces


@dataclass(frozen=True)
class Solution:
    """What the planner found. `fits` is False where even the best plan does not fit in `limit_bytes`.

    peak_bytes: predicted peak; in a pool with the allocator's rounding, otherwise the sum of the live buffers.
    bound_seconds: no plan that fits in the limit can have a `schedule.cost_seconds` below this; 0 where it is not known.
    """

    problem: Problem
    choices: dict[int, Choice]
    schedule: Schedule
    limit_bytes: int
    peak_bytes: int
    fits: bool
    bound_seconds: float = 0.0


def usable_bytes(problem: Problem, limit_bytes: int, pool: str) -> int:
    """What a plan may use of a limit."""
    return int(limit_bytes * (1 - RESERVE)) - _accident_bytes(problem, in_turn=pool != "single")


def _accident_bytes(problem: Problem, *, in_turn: bool) -> int:
    largest = max((b.bytes for b in problem.buffers), default=0)
    return 0 if in_turn else min(int(ACCIDENT * largest), ACCIDENT_BYTES)


def _check(problem: Problem, choices: dict[int, Choice], schedule: Schedule, limit_bytes: int, pool: str) -> Solution:
    usable = usable_bytes(problem, limit_bytes, pool)
    if pool == "none" or schedule.peak_bytes > usable:
        return Solution(problem, choices, schedule, limit_bytes, schedule.peak_bytes, schedule.peak_bytes <= usable)
    if pool == "split":  # in turn: the replay is exact to the piece, if the size of the pool is
        fit = bfc.fit(problem, schedule, limit_bytes, pool, margin=RESERVE)
        fit = replace(fit, fits=fit.fits and fit.peak_bytes <= limit_bytes * (1 - RESERVE_IN_TURN))
    else:
        fit = bfc.fit(problem, schedule, usable, pool)
    return Solution(problem, choices, schedule, limit_bytes, max(fit.peak_bytes, schedule.peak_bytes), fit.fits)


def fits(solution: Solution, pool: str) -> bool:
    """True where a solution fits in its limit."""
    return _check(solution.problem, solution.choices, solution.schedule, solution.limit_bytes, pool).fits


def needed_bytes(problem: Problem, schedule: Schedule, pool: str, *, planned: bool = True) -> int:
    """The smallest limit that a schedule fits in, in whole MiB. planned: its order will be held."""
    # The first regions of a CPU's pool are lost to what is planned; next to a small step they are not small.
    least = max(schedule.peak_bytes, 2 * bfc.FIRST_REGIONS_BYTES if pool == "split" else 1)
    accident = 0 if pool == "none" else _accident_bytes(problem, in_turn=planned and pool == "split")
    for percent in range(100, 400):
        limit = -int(-((least * percent // 100 + accident) / (1 - RESERVE)) // (1 << 20)) * (1 << 20)
        # In a split pool a schedule is checked as one whose order is held: what that leaves out is taken off here.
        room = limit if planned or pool != "split" else limit - accident
        if _check(problem, {}, schedule, room, pool).fits:
            return limit
    raise AssertionError("a pool of four times the bytes holds everything")


def working_set_bytes(problem: Problem) -> int:
    """No plan's peak is below this: what some anchor reads and makes, all else away."""
    bytes_at = problem.base_bytes + problem.small_bytes + problem.workspace_bytes
    for buffer in problem.buffers:
        there: list[int] = []
        last = buffer.defined
        for read in buffer.reads:
            if buffer.mapped and buffer.swappable and read - last > 1:
                break  # from here on it may be read where it was swapped to
            there, last = [*there, read], read
        bytes_at[[*{*there} - {buffer.defined}]] += buffer.bytes
        # An op that writes in place needs no bytes of its own.
        bytes_at[buffer.defined] += 0 if buffer.overwrites else buffer.bytes
    return int(bytes_at.max(initial=problem.base_bytes))


def solve(
    problem: Problem,
    limit_bytes: int,
    machine: Machine,
    *,
    pool: str = "none",
    seconds: float = PLANNING_SECONDS,
    most_swapped_bytes: int | None = None,
) -> Solution:
    """The cheapest plan found that fits in the limit; the lowest one where none does.

    pool: one of `bfc.POOLS`; in a pool buffers must fit as pieces, too. most_swapped_bytes: per step, to the tier.
    """
    search = _Search(problem, machine, seconds, most_swapped_bytes)
    downhill = _Search(problem, _cheap(machine), seconds, most_swapped_bytes)
    budget = usable_bytes(problem, limit_bytes, pool)
    unplanned = search.build({})
    bound, starts = 0.0, [unplanned]
    if unplanned[1].peak_bytes > budget >= working_set_bytes(problem):
        relaxed = exact.solve(problem, budget, machine)
        bound = unplanned[1].seconds + relaxed.bound_seconds
        if relaxed.choices is not None and search.allowed(relaxed.choices):
            starts.append(search.build(relaxed.choices))
    usable = budget

    def checked(found: _Found) -> Solution:
        return replace(_check(problem, *found, limit_bytes, pool), bound_seconds=bound)

    while True:
        found: list[_Found] = []
        for choices, _ in starts:
            lowered = search.build(downhill.descend(*downhill.build(choices), budget)[0])
            if lowered[1].peak_bytes <= budget:
                lowered = search.give_back(*lowered, budget)
            if all(lowered[0] != other[0] for other in found):
                found.append(lowered)
        if all(f[1].peak_bytes > budget for f in found):  # no way down was found: begin at the bottom
            for choices in search.everything_moved():
                bottom = search.build(downhill.descend(*downhill.build(choices), budget)[0])
                if search.allowed(bottom[0]):
                    found.append(search.give_back(*bottom, budget))
        starts = sorted((f for f in found if f[1].peak_bytes <= budget), key=_cost)
        if not starts or search.late or downhill.late:
            return checked(min(found, key=lambda f: f[1].peak_bytes))
        fitting = [f for f in starts if checked(f).fits][:EXCHANGED_PLANS]
        if fitting:
            changed = [search.exchange(*f, usable, lambda f: checked(f).fits) for f in fitting]
            return checked(min(changed, key=_cost))
        budget = int(min(f[1].peak_bytes for f in starts) * LOWER)


def lightened(
    solution: Solution, machine: Machine, *, pool: str = "none", seconds: float = PLANNING_SECONDS
) -> Solution:
    """A plan that fits in its limit, made cheaper by rules 3 and 4: the floor's was found without a thought for time."""
    search = _Search(solution.problem, machine, seconds)
    usable = usable_bytes(solution.problem, solution.limit_bytes, pool)

    def good(found: _Found) -> bool:
        return _check(solution.problem, *found, solution.limit_bytes, pool).fits

    here = search.give_back(solution.choices, solution.schedule, usable, good)
    return _check(solution.problem, *search.exchange(*here, usable, good), solution.limit_bytes, pool)


def floor(problem: Problem, machine: Machine, *, pool: str = "none") -> tuple[Solution, int]:
    """The plan that needs the smallest limit of those that descents reach, and that limit.

    Time counts nothing at first, so that the floor hardly depends on how fast the ops have been measured.
    """
    timeless = _Search(_timeless(problem), _cheap(machine), PLANNING_SECONDS)
    lows = [timeless.descend(*timeless.build(c), 0) for c in ({}, next(timeless.everything_moved()))]
    near = timeless.met(int(min(low[1].peak_bytes for low in lows) * NEAR_FLOOR))
    search = _Search(problem, _cheap(machine), PLANNING_SECONDS)
    for choices, _ in lows:  # transfers that are slow beside the ops hold memory longer
        search.descend(*search.build(choices), 0)
    met: list[_Found] = []
    for found in (*search.on_the_way, *(search.build(choices) for choices, _ in near)):
        if all(found[0] != other[0] for other in met):
            met.append(found)
    lowest = min(found[1].peak_bytes for found in met)
    met = [f for f in met if f[1].peak_bytes <= lowest * (NEAR_FLOOR if pool != "none" else 1)]
    limits = [needed_bytes(problem, schedule, pool) for _, schedule in met]
    best = limits.index(min(limits))
    if pool == "split":
        steady = {
            i: _steady(problem, met[i][1], limits[i], pool)
            for i in sorted(range(len(met)), key=limits.__getitem__)[:STEADY_PLANS]
        }
        known = {i: limit for i, limit in steady.items() if limit is not None}
        if known:
            best = min(known, key=known.__getitem__)
            limits[best] = known[best]
    return _check(problem, *met[best], limits[best], pool), limits[best]


def _timeless(problem: Problem) -> Problem:
    buffers = tuple(replace(b, seconds=TIMELESS_SECONDS) for b in problem.buffers)
    return replace(problem, seconds=np.full(len(problem.anchors), TIMELESS_SECONDS), buffers=buffers)


def _steady(problem: Problem, schedule: Schedule, limit_bytes: int, pool: str) -> int | None:
    """The smallest limit near this one such that a little more memory is not too little, or None: gaps between the weights are
    never quite as predicted, and which pieces fit must not hang on them."""
    fitting = 0
    for limit in range(limit_bytes, limit_bytes + STEADY_TRIED * STEADY_STEP_BYTES, STEADY_STEP_BYTES):
        fitting = fitting + 1 if _check(problem, {}, schedule, limit, pool).fits else 0
        if fitting > STEADY_STEPS:
            return limit - STEADY_STEPS * STEADY_STEP_BYTES
    return None


def _cheap(machine: Machine) -> Machine:
    """The same, but for transfers that cost nothing beyond the least price."""
    return replace(machine, swap_share=0.0)


_Found = tuple[dict[int, Choice], Schedule]


def _cost(found: _Found) -> tuple[float, int]:
    return found[1].cost_seconds, found[1].peak_bytes


class _Search:
    """Rules 1 to 4, and the account of evaluations."""

    def __init__(
        self, problem: Problem, machine: Machine, seconds: float, most_swapped_bytes: int | None = None
    ) -> None:
        self.problem, self.machine, self.most_swapped_bytes = problem, machine, most_swapped_bytes
        self.deadline = time.thread_time() + seconds
        self.evaluations = 0
        self.step_seconds = float(problem.seconds.sum())
        self.least_bytes = working_set_bytes(problem)
        self.lowest: _Found
        self.on_the_way: list[_Found] = []  # where descents came by

    @property
    def late(self) -> bool:
        return time.thread_time() > self.deadline

    def build(self, choices: dict[int, Choice]) -> _Found:
        self.evaluations += 1
        return choices, build(self.problem, choices, self.machine)

    def everything_moved(self) -> Iterator[dict[int, Choice]]:
        """All that can goes at once, and comes back or is computed again at the last moment: few plans have a smaller peak."""
        buffers = self.problem.buffers
        for first, second in ((moves.TIGHT, moves.TIGHT_AGAIN), (moves.TIGHT_AGAIN, moves.TIGHT)):
            able = {Mode.SWAP: [b.swappable for b in buffers], Mode.RECOMPUTE: [b.recomputable for b in buffers]}
            yield {
                b: first if able[first.mode][b] else second
                for b in range(len(buffers))
                if able[first.mode][b] or able[second.mode][b]
            }

    def allowed(self, choices: dict[int, Choice]) -> bool:
        """Whether no more is swapped than may be."""
        if self.most_swapped_bytes is None:
            return True
        swapped = sum(self.problem.buffers[b].bytes for b, c in choices.items() if c.mode is Mode.SWAP)
        return swapped <= self.most_swapped_bytes

    def met(self, budget_bytes: int) -> list[_Found]:
        """The plans below a budget that descents came by."""
        return [p for p in self.on_the_way if p[1].peak_bytes <= budget_bytes]

    def descend(
        self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, *, kept: int = -1, rounds: int = 10**6
    ) -> _Found:
        """Rules 1 and 2: the first choices below the budget, else the lowest that were met. `kept`: not to be moved."""
        self.lowest = here = (choices, schedule)
        if kept < 0:
            self.on_the_way.append(here)
        reachable = max(budget_bytes, self.least_bytes)
        while self.problem.anchors and here[1].peak_bytes > reachable and rounds and not self.late:
            rounds -= 1
            found = self._best_move(here, budget_bytes, kept) or (
                self._best_pair(here, budget_bytes) if kept < 0 else None
            )
            if found is None:
                break
            here = found
            if kept < 0:
                self.on_the_way.append(here)
            if here[1].peak_bytes < self.lowest[1].peak_bytes:
                self.lowest = here
        return self.lowest

    def _best_move(self, here: _Found, budget_bytes: int, kept: int) -> _Found | None:
        """Rule 1. None when no move lowers the excess."""
        goal = _goal(here[1], budget_bytes)
        before = _excess(here[1], goal)
        promising = sorted(self._moves(*here, kept), key=lambda m: -m[0])
        # Two lives for what hardly waits come last: they gain little, and stand in the way of better moves.
        usual: list[tuple[float, int, Choice]] = []
        last: list[tuple[float, int, Choice]] = []
        for move in promising:
            (last if move[1] not in here[0] and move[2].split == 1 else usual).append(move)
        batches = [group[i : i + TRIED_MOVES] for group in (usual, last) for i in range(0, len(group), TRIED_MOVES)]
        best, best_score = None, 0.0
        for tried in batches:
            for _, buffer, choice in tried:
                after = self.build({**here[0], buffer: choice})
                gained = before - _excess(after[1], goal)
                added = max(after[1].cost_seconds - here[1].cost_seconds, 0.0)
                score = gained / (added + 3e-4 * self.step_seconds)
                if gained > 0 and score > best_score:
                    best, best_score = after, score
            if best is not None:
                break
        return best

    def _best_pair(self, here: _Found, budget_bytes: int) -> _Found | None:
        """Rule 2: the pair that lowers the excess the most."""
        goal = _goal(here[1], budget_bytes)
        best, least = None, _excess(here[1], goal)
        firsts = []
        for _, buffer, choice in self._moves(*here, -1):
            firsts.append(self.build({**here[0], buffer: choice}))
        for first in sorted(firsts, key=lambda f: _excess(f[1], goal))[:TRIED_FIRST]:
            seconds = sorted(self._moves(*first, -1), key=lambda m: -m[0])
            for _, buffer, choice in seconds[:TRIED_SECOND]:
                after = self.build({**first[0], buffer: choice})
                if _excess(after[1], goal) < least:
                    best, least = after, _excess(after[1], goal)
        return best

    def _moves(self, choices: dict[int, Choice], schedule: Schedule, kept: int) -> Iterator[tuple[float, int, Choice]]:
        """(promise, buffer, new choice) for every buffer that is live at the peak without being used there."""
        for promise, b, choice in moves.at_the_peak(self.problem, choices, schedule):
            if b != kept and (choice.mode is not Mode.SWAP or self.allowed({**choices, b: choice})):
                yield promise, b, choice

    def give_back(
        self,
        choices: dict[int, Choice],
        schedule: Schedule,
        budget_bytes: int,
        good: Callable[[_Found], bool] = lambda _: True,
    ) -> _Found:
        """Rule 3. `good`: what a plan must be besides low enough."""
        here = choices, schedule
        for b, choice in self._dearest_first(choices):
            for easier in moves.easier(choice):
                if self.late:
                    return here
                after = self.build(moves.changed(here[0], b, easier))
                cheaper = after[1].cost_seconds <= here[1].cost_seconds
                if cheaper and after[1].peak_bytes <= budget_bytes and good(after):
                    here = after
                    break
        return here

    def exchange(
        self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, good: Callable[[_Found], bool]
    ) -> _Found:
        """Rule 4. `good`: as in `give_back`."""
        here, improved = (choices, schedule), True
        last = self.evaluations + EXCHANGED
        while improved:
            improved = False
            kept = [(b, KEEP) for b in self.problem.youngest_first if b not in here[0]]
            for b, choice in self._dearest_first(here[0]) + kept:
                for other in moves.others(self.problem, here[1], b, choice) if here[0].get(b, KEEP) == choice else ():
                    if self.evaluations > last or self.late:
                        return here
                    better = self._exchanged(here, b, other, budget_bytes, good)
                    if better is not None:
                        here, improved = better, True
                        break
        return here

    def _exchanged(
        self, here: _Found, b: int, other: Choice, budget_bytes: int, good: Callable[[_Found], bool]
    ) -> _Found | None:
        """The plan with another choice for `b`, repaired and lightened; None where it is not better."""
        after = self.build(moves.changed(here[0], b, other))
        added = b not in here[0]
        if not self.allowed(after[0]) or (_cost(after) >= _cost(here) and not added):
            return None  # a repair costs more yet; what one more saves shows when others are given back
        after = self.descend(*after, budget_bytes, kept=b, rounds=REPAIRS)
        if after[1].peak_bytes > budget_bytes or (_cost(after) >= _cost(here) and not added):
            return None
        lighter = self.give_back(*after, budget_bytes)
        return next((f for f in (lighter, after) if _cost(f) < _cost(here) and good(f)), None)

    def _dearest_first(self, choices: dict[int, Choice]) -> list[tuple[int, Choice]]:
        def cost(item: tuple[int, Choice]) -> float:
            buffer = self.problem.buffers[item[0]]
            moved = buffer.bytes / self.machine.swap_out_bytes_per_second + len(item[1].again) * buffer.seconds
            return buffer.seconds if item[1].mode is Mode.RECOMPUTE else moved

        return sorted(choices.items(), key=cost, reverse=True)


def _goal(schedule: Schedule, budget_bytes: int) -> int:
    """What a round works towards: the budget, but never much at once, or it would pay for bytes that others save."""
    return budget_bytes if budget_bytes > 0 else int(schedule.peak_bytes * 0.97)


def _excess(schedule: Schedule, budget_bytes: int) -> float:
    """How far a schedule is above the budget: the area above it, and the peak, which counts like 50 events."""
    over = np.maximum(schedule.live_bytes - budget_bytes, 0)
    return float(over.sum() + 50 * over.max())
