"""Moves from plan to plan under a memory limit: PLAN-1 to PLAN-4 of `planner`. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lms3d.device.pool_layout import FIRST_REGIONS_BYTES
from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import allocator, moves
from lms3d.engine.planners.hybrid.choices import KEEP, Choice, Mode
from lms3d.engine.planners.hybrid.descent import Candidate, Descent, Good, anything, cost
from lms3d.engine.planners.hybrid.problem import Problem
from lms3d.engine.planners.hybrid.schedule import Schedule
from lms3d.engine.tuning import ACCIDENT, EXCHANGED, REPAIRS, RESERVE, RESERVE_IN_TURN, RESERVE_ON_GPU

_MOST_ACCIDENT_BYTES = 3 * allocator.MOST_WASTE


@dataclass(frozen=True)
class Solution:
    """What the planner found. `fits` is False where even the best plan does not fit in `limit_bytes`.

    peak_bytes: predicted peak; in a pool with the allocator's rounding, otherwise the sum of the live buffers.
    bound_seconds: no plan that fits can have a lower `schedule.cost_seconds`; 0 where unknown, or where this plan does not fit.
    """

    problem: Problem
    choices: dict[int, Choice]
    schedule: Schedule
    limit_bytes: int
    peak_bytes: int
    fits: bool
    bound_seconds: float = 0.0

    @property
    def lost_share(self) -> float:
        """Of the step where all is kept: what this plan costs more than the best there can be."""
        unplanned = float(self.problem.begins[-1])
        return (self.schedule.cost_seconds - max(unplanned, self.bound_seconds)) / unplanned if unplanned else 0.0


def usable_bytes(limit_bytes: int, pool: str = "none") -> int:
    """Bytes of a limit that a plan may use."""
    return int(limit_bytes * (1 - _reserve(pool)))


def _reserve(pool: str) -> float:
    """A GPU's pool has no room apart for crumbs, which come and go between the planned pieces."""
    return RESERVE_ON_GPU if pool == "single" else RESERVE


def _accident_bytes(problem: Problem) -> int:
    """Room for one accident of a step whose order nobody holds."""
    return min(int(ACCIDENT * max((b.bytes for b in problem.buffers), default=0)), _MOST_ACCIDENT_BYTES)


def check(
    problem: Problem,
    choices: dict[int, Choice],
    schedule: Schedule,
    limit_bytes: int,
    pool: str,
    account: Account | None = None,
) -> Solution:
    """Whether a schedule fits in a limit. account: pays for the replays."""
    usable = usable_bytes(limit_bytes, pool)
    if pool == "none" or schedule.peak_bytes > usable:
        return Solution(problem, choices, schedule, limit_bytes, schedule.peak_bytes, schedule.peak_bytes <= usable)
    # The order is held: the replay is exact to the piece, if the size of the pool is.
    fit = allocator.fit(problem, schedule, limit_bytes, pool, margin=_reserve(pool))
    fit = replace(fit, fits=fit.fits and fit.peak_bytes <= limit_bytes * (1 - RESERVE_IN_TURN))
    if account is not None:
        account.charge_replay(len(problem.anchors), len(schedule.copies), fit.replays)
    return Solution(problem, choices, schedule, limit_bytes, max(fit.peak_bytes, schedule.peak_bytes), fit.fits)


def fits(solution: Solution, pool: str) -> bool:
    """True where a solution fits in its limit."""
    return check(solution.problem, solution.choices, solution.schedule, solution.limit_bytes, pool).fits


def needed_bytes(problem: Problem, schedule: Schedule, pool: str, *, planned: bool = True) -> int:
    """The smallest limit in bytes, a whole number of MiB, that a schedule fits in. planned: its order will be held."""
    # Plans cannot use the first regions of a CPU's pool; next to a small step they are not small.
    least = max(schedule.peak_bytes, 2 * FIRST_REGIONS_BYTES if pool == "split" else 1)
    accident = 0 if planned or pool == "none" else _accident_bytes(problem)
    for percent in range(100, 400):
        limit = -int(-((least * percent // 100 + accident) / (1 - _reserve(pool))) // (1 << 20)) * (1 << 20)
        if check(problem, {}, schedule, limit - accident, pool).fits:
            return limit
    raise AssertionError("a pool of four times the bytes must hold everything")


def working_set_bytes(problem: Problem) -> int:
    """A lower bound of every plan's peak: what the hungriest anchor reads and makes."""
    bytes_at = problem.base_bytes + problem.small_bytes + problem.workspace_bytes
    for buffer in problem.buffers:
        there: list[int] = []
        last = buffer.defined
        for read in buffer.reads:
            if buffer.mapped and buffer.swappable and read - last > 1:
                break  # from here on it may be read in the tier
            there, last = [*there, read], read
        bytes_at[[*{*there} - {buffer.defined}]] += buffer.bytes
        # An op that writes in place allocates nothing.
        bytes_at[buffer.defined] += 0 if buffer.overwrites else buffer.bytes
    return int(bytes_at.max(initial=problem.base_bytes))


class Search(Descent):
    """PLAN-1 to PLAN-4. good_enough: a plan that costs this share of the step more than the unplanned one ends the search."""

    def __init__(
        self,
        problem: Problem,
        machine: Machine,
        seconds: float,
        most_swapped_bytes: int | None = None,
        account: Account | None = None,
        good_enough: float = 0.0,
    ) -> None:
        self.good_enough = good_enough
        least = working_set_bytes(problem)
        super().__init__(
            problem, machine, seconds, least_bytes=least, most_swapped_bytes=most_swapped_bytes, account=account
        )

    def everything_moved(self) -> Iterator[dict[int, Choice]]:
        """All that can move leaves at once and returns at the last moment: few plans have a smaller peak."""
        buffers = self.problem.buffers
        for first, second in ((moves.TIGHT, moves.TIGHT_AGAIN), (moves.TIGHT_AGAIN, moves.TIGHT)):
            able = {Mode.SWAP: [b.swappable for b in buffers], Mode.RECOMPUTE: [b.recomputable for b in buffers]}
            yield {
                b: first if able[first.mode][b] else second
                for b in range(len(buffers))
                if able[first.mode][b] or able[second.mode][b]
            }

    def fewest_moved(self, good: Good) -> Candidate | None:
        """The fewest moves of a fixed order that are enough, found by bisection: a rough plan at a low price.

        The first of `moves.orders`; where it is not enough its moves are made tight. Where that plan is not settled, it is compared
        with those of the other orders. None where nothing is enough.
        """
        first, *others = moves.orders(self.problem, self.machine)
        found = self._bisected(first, good)
        if found is None:
            found = self._bisected([(b, moves.tighter(choice)) for b, choice in first], good)
        if found is None or not self.settled(found):
            rough = [found, *(self._bisected(order, good) for order in others)]
            found = min((plan for plan in rough if plan is not None), key=cost, default=None)
        return found

    def settled(self, found: Candidate) -> bool:
        """Whether a plan costs so little more than the unplanned step that no search is worth its time (EFFORT-5)."""
        return found.schedule.cost_seconds <= (1 + self.good_enough) * self.step_seconds

    def _bisected(self, order: list[tuple[int, Choice]], good: Good) -> Candidate | None:
        """The shortest good prefix of `order`, if longer ones are good, too."""
        best, too_few, enough = None, 0, len(order)
        while too_few < enough and not self.late:
            half = (too_few + enough) // 2
            found = self.build(dict(order[: half + 1]))
            if good(found):
                best, enough = found, half
            else:
                too_few = half + 1
        return best

    def give_back(
        self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, good: Good = anything
    ) -> Candidate:
        """PLAN-3. good: what a plan must be besides low enough."""
        here = Candidate(choices, schedule)
        for b, choice in self._dearest_first(choices):
            for easier in moves.easier(choice):
                if self.late:
                    return here
                after = self.build(moves.changed(here.choices, b, easier))
                cheaper = after.schedule.cost_seconds <= here.schedule.cost_seconds
                if cheaper and after.schedule.peak_bytes <= budget_bytes and good(after):
                    here = after
                    break
        return here

    def nearest(self, bottom: Candidate, goals: list[Candidate], budget_bytes: int, good: Good) -> list[Candidate]:
        """From `bottom`, which is good, towards each goal as far as plans stay good; the cheapest first."""
        near = [self._towards(bottom, goal, budget_bytes, good) for goal in goals] or [bottom]
        return sorted((self.give_back(*f, budget_bytes, good) for f in near), key=cost)

    def _towards(self, here: Candidate, goal: Candidate, budget_bytes: int, good: Good) -> Candidate:
        """Takes over the goal's choices, all at once, and where that is not good, each half of them."""
        either = self._dearest_first({**goal.choices, **here.choices})
        differing = [b for b, _ in either if here.choices.get(b) != goal.choices.get(b)]
        groups = [differing]
        while groups and not self.late:
            group = groups.pop()
            choices = here.choices
            for b in group:
                choices = moves.changed(choices, b, goal.choices.get(b, KEEP))
            after = self.build(choices)
            cheaper = self.allowed(choices) and cost(after) <= cost(here)
            if cheaper and after.schedule.peak_bytes <= budget_bytes and good(after):
                here = after
            elif len(group) > 1:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
        return here

    def exchange(self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, good: Good) -> Candidate:
        """PLAN-4. good: as in `give_back`."""
        here, improved = Candidate(choices, schedule), True
        last = self.evaluations + EXCHANGED
        while improved:
            improved = False
            kept = [(b, KEEP) for b in self.problem.youngest_first if b not in here.choices]
            for b, choice in self._dearest_first(here.choices) + kept:
                for other in (
                    moves.others(self.problem, here.schedule, b, choice) if here.choices.get(b, KEEP) == choice else ()
                ):
                    if self.evaluations > last or self.late or self.settled(here):
                        return here
                    better = self._exchanged(here, b, other, budget_bytes, good)
                    if better is not None:
                        here, improved = better, True
                        break
        return here

    def _exchanged(self, here: Candidate, b: int, other: Choice, budget_bytes: int, good: Good) -> Candidate | None:
        """The plan with another choice for `b`, repaired and lightened; None where it is not better."""
        after = self.build(moves.changed(here.choices, b, other))
        added = b not in here.choices
        if not self.allowed(after.choices) or (cost(after) >= cost(here) and not added):
            return None  # a repair only adds cost; a further move may pay when others are given back
        after = self.descend(*after, budget_bytes, kept=b, rounds=REPAIRS)
        if after.schedule.peak_bytes > budget_bytes or (cost(after) >= cost(here) and not added):
            return None
        lighter = self.give_back(*after, budget_bytes)
        return next((f for f in (lighter, after) if cost(f) < cost(here) and good(f)), None)

    def _dearest_first(self, choices: dict[int, Choice]) -> list[tuple[int, Choice]]:
        def price(b: int, choice: Choice) -> float:
            buffer = self.problem.buffers[b]
            moved = buffer.bytes / self.machine.swap_out_bytes_per_second + len(choice.again) * buffer.seconds
            return buffer.seconds if choice.mode is Mode.RECOMPUTE else moved

        return sorted(choices.items(), key=lambda item: price(*item), reverse=True)


def cheap(machine: Machine) -> Machine:
    """The same machine, with transfers at the least price."""
    return replace(machine, swap_share=0.0)
