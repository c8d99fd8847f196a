"""Moves from plan to plan under a memory limit, and what they must keep to: the rules of `planner`. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lms3d.swap.cost import Machine
from lms3d.swap.effort import Account
from lms3d.swap.planners.hybrid import allocator, moves
from lms3d.swap.planners.hybrid.problem import Problem
from lms3d.swap.planners.hybrid.schedule import KEEP, Choice, Mode, Schedule, build

TRIED_MOVES = 8  # per round: the most promising ones are simulated
TRIED_FIRST, TRIED_SECOND = 8, 6  # rule 2: pairs
EXCHANGED = 1000  # evaluations for rule 4, from each plan; one takes about 2 ms with isensee2017 at 96^3
REPAIRS = 4  # moves after each exchange
# What stays unplanned: the executor's own buffers, and steps whose small ops run in yet another order.
RESERVE = 0.04
RESERVE_IN_TURN = 0.03  # of a pool whose waste is counted, too
# Where memory does not change hands in the planned order (`emit`, rule 4: on a GPU, and in a step without a plan), a pool wastes
# more than its replay foresees: a small tensor in the wrong place makes one of the largest tensors unable to use a hole of
# its own size. Room for most of one such accident is left.
ACCIDENT = 0.7  # of the largest tensor
ACCIDENT_BYTES = 3 * allocator.MOST_WASTE  # at most


@dataclass(frozen=True)
class Solution:
    """What the planner found. `fits` is False where even the best plan does not fit in `limit_bytes`.

    peak_bytes: predicted peak; in a pool with the allocator's rounding, otherwise the sum of the live buffers.
    bound_seconds: no plan that fits in the limit can have a `schedule.cost_seconds` below this; 0 where it is not known, or
        where this plan does not fit.
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


def check(
    problem: Problem,
    choices: dict[int, Choice],
    schedule: Schedule,
    limit_bytes: int,
    pool: str,
    account: Account | None = None,
) -> Solution:
    """Whether a schedule fits in a limit. account: who pays for the replays."""
    usable = usable_bytes(problem, limit_bytes, pool)
    if pool == "none" or schedule.peak_bytes > usable:
        return Solution(problem, choices, schedule, limit_bytes, schedule.peak_bytes, schedule.peak_bytes <= usable)
    if pool == "split":  # in turn: the replay is exact to the piece, if the size of the pool is
        fit = allocator.fit(problem, schedule, limit_bytes, pool, margin=RESERVE)
        fit = replace(fit, fits=fit.fits and fit.peak_bytes <= limit_bytes * (1 - RESERVE_IN_TURN))
    else:
        fit = allocator.fit(problem, schedule, usable, pool)
    if account is not None:
        account.replayed(len(problem.anchors), len(schedule.copies), fit.replays)
    return Solution(problem, choices, schedule, limit_bytes, max(fit.peak_bytes, schedule.peak_bytes), fit.fits)


def fits(solution: Solution, pool: str) -> bool:
    """True where a solution fits in its limit."""
    return check(solution.problem, solution.choices, solution.schedule, solution.limit_bytes, pool).fits


def needed_bytes(problem: Problem, schedule: Schedule, pool: str, *, planned: bool = True) -> int:
    """The smallest limit that a schedule fits in, in whole MiB. planned: its order will be held."""
    # The first regions of a CPU's pool are lost to what is planned; next to a small step they are not small.
    least = max(schedule.peak_bytes, 2 * allocator.FIRST_REGIONS_BYTES if pool == "split" else 1)
    accident = 0 if pool == "none" else _accident_bytes(problem, in_turn=planned and pool == "split")
    for percent in range(100, 400):
        limit = -int(-((least * percent // 100 + accident) / (1 - RESERVE)) // (1 << 20)) * (1 << 20)
        # In a split pool a schedule is checked as one whose order is held: what that leaves out is taken off here.
        room = limit if planned or pool != "split" else limit - accident
        if check(problem, {}, schedule, room, pool).fits:
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


Found = tuple[dict[int, Choice], Schedule]


def cost(found: Found) -> tuple[float, int]:
    return found[1].cost_seconds, found[1].peak_bytes


class Search:
    """Rules 1 to 4, until so many seconds, by price list, have been put on an account (`effort`)."""

    def __init__(
        self,
        problem: Problem,
        machine: Machine,
        seconds: float,
        most_swapped_bytes: int | None = None,
        account: Account | None = None,
    ) -> None:
        self.problem, self.machine, self.most_swapped_bytes = problem, machine, most_swapped_bytes
        self.account = account or Account()
        self.deadline = self.account.seconds + seconds
        self.evaluations = 0
        self.step_seconds = float(problem.seconds.sum())
        self.least_bytes = working_set_bytes(problem)
        self.on_the_way: list[Found] = []  # where descents came by

    @property
    def late(self) -> bool:
        return self.seconds_left < 0

    @property
    def seconds_left(self) -> float:
        return self.deadline - self.account.seconds

    def build(self, choices: dict[int, Choice]) -> Found:
        self.evaluations += 1
        schedule = build(self.problem, choices, self.machine)
        self.account.built(len(self.problem.anchors), len(schedule.copies) - len(self.problem.buffers))
        return choices, schedule

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

    def fewest_moved(self, good: Callable[[Found], bool]) -> Found | None:
        """As few moves as are enough of a fixed order, found by halving: a rough plan for little.

        First what frees the most bytes for the longest time and the least price; tight only where that does not do. None where
        not even all of them do.
        """
        worth = [(moves.worth(self.problem, b, self.machine), b) for b in range(len(self.problem.buffers))]
        order = [b for value, b in sorted(worth, key=lambda w: (-w[0], w[1])) if value > 0]
        plans = (self._halved([(b, moves.first_choice(self.problem.buffers[b], tight)) for b in order], good)
                 for tight in (False, True))  # fmt: skip
        return next((plan for plan in plans if plan is not None), None)

    def _halved(self, order: list[tuple[int, Choice]], good: Callable[[Found], bool]) -> Found | None:
        """The shortest beginning of `order` that is good, if longer ones are, too."""
        best, too_few, enough = None, 0, len(order)
        while too_few < enough and not self.late:
            half = (too_few + enough) // 2
            found = self.build(dict(order[: half + 1]))
            if good(found):
                best, enough = found, half
            else:
                too_few = half + 1
        return best

    def allowed(self, choices: dict[int, Choice]) -> bool:
        """Whether no more is swapped than may be."""
        if self.most_swapped_bytes is None:
            return True
        swapped = sum(self.problem.buffers[b].bytes for b, c in choices.items() if c.mode is Mode.SWAP)
        return swapped <= self.most_swapped_bytes

    def met(self, budget_bytes: int) -> list[Found]:
        """The plans below a budget that descents came by."""
        return [p for p in self.on_the_way if p[1].peak_bytes <= budget_bytes]

    def descend(
        self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, *, kept: int = -1, rounds: int = 10**6
    ) -> Found:
        """Rules 1 and 2: the first choices below the budget, else the lowest that were met. `kept`: not to be moved."""
        lowest = here = (choices, schedule)
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
            if here[1].peak_bytes < lowest[1].peak_bytes:
                lowest = here
        return lowest

    def _best_move(self, here: Found, budget_bytes: int, kept: int) -> Found | None:
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

    def _best_pair(self, here: Found, budget_bytes: int) -> Found | None:
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
        good: Callable[[Found], bool] = lambda _: True,
    ) -> Found:
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

    def nearest(
        self, bottom: Found, goals: list[Found], budget_bytes: int, good: Callable[[Found], bool]
    ) -> list[Found]:
        """From `bottom`, which is good, as far towards each goal as plans stay good; the cheapest first."""
        near = [self._towards(bottom, goal, budget_bytes, good) for goal in goals] or [bottom]
        return sorted((self.give_back(*f, budget_bytes, good) for f in near), key=cost)

    def _towards(self, here: Found, goal: Found, budget_bytes: int, good: Callable[[Found], bool]) -> Found:
        """Takes over the goal's choices, many at once, and where that is not good, each half of them."""
        differing = [b for b, _ in self._dearest_first({**goal[0], **here[0]}) if here[0].get(b) != goal[0].get(b)]
        groups = [differing]
        while groups and not self.late:
            group = groups.pop()
            choices = here[0]
            for b in group:
                choices = moves.changed(choices, b, goal[0].get(b, KEEP))
            after = self.build(choices)
            cheaper = self.allowed(choices) and cost(after) <= cost(here)
            if cheaper and after[1].peak_bytes <= budget_bytes and good(after):
                here = after
            elif len(group) > 1:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
        return here

    def exchange(
        self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, good: Callable[[Found], bool]
    ) -> Found:
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
        self, here: Found, b: int, other: Choice, budget_bytes: int, good: Callable[[Found], bool]
    ) -> Found | None:
        """The plan with another choice for `b`, repaired and lightened; None where it is not better."""
        after = self.build(moves.changed(here[0], b, other))
        added = b not in here[0]
        if not self.allowed(after[0]) or (cost(after) >= cost(here) and not added):
            return None  # a repair costs more yet; what one more saves shows when others are given back
        after = self.descend(*after, budget_bytes, kept=b, rounds=REPAIRS)
        if after[1].peak_bytes > budget_bytes or (cost(after) >= cost(here) and not added):
            return None
        lighter = self.give_back(*after, budget_bytes)
        return next((f for f in (lighter, after) if cost(f) < cost(here) and good(f)), None)

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


def cheap(machine: Machine) -> Machine:
    """The same, but for transfers that cost nothing beyond the least price."""
    return replace(machine, swap_share=0.0)
