"""Memory limit -> plan, for steps of thousands of pieces: plans for fixed budgets, of which a limit takes the cheapest that fits.

A step whose large tensors are slabs has ten times as many buffers as one of whole tensors, too many to move one at a time
(`local_search`). Nearly all that a plan holds is a sum over buffers, though, and the best sum under a budget is a linear program
of a special kind (`covering`): milliseconds to seconds, and within a few per cent of its own lower bound.

LADDER-1  The budgets are the powers of `tuning.RUNG`, whatever the limit. A limit takes the cheapest plan of those that fit in it.
          So a larger one has all the plans of a smaller one to choose from: more memory is never slower, and of a tighter limit
          the peak is never higher (but for the pieces of a pool, where fitting in a larger one is likely and not certain).
LADDER-2  The largest budget in the limit comes first; smaller ones while their plans do not fit the pool, or while the lower bound
          of the program says that one may be cheaper. Bounds are convex in the budget, so one program bounds all others.
LADDER-3  A plan is built exactly. Where its peak is above its budget, what transfers really take is put into the program. That
          may swing: from the closest of these plans on, the program is solved for as much less.
LADDER-4  The floor is the smallest limit that any plan near the lowest budget fits in, all moved included (FLOOR-2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lms3d.engine import tuning
from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import floor
from lms3d.engine.planners.hybrid.again import passing
from lms3d.engine.planners.hybrid.covering import Cover, Held, cover
from lms3d.engine.planners.hybrid.descent import Candidate
from lms3d.engine.planners.hybrid.links import Links
from lms3d.engine.planners.hybrid.ways import all_moved, ways
from lms3d.engine.step_model import fit
from lms3d.engine.step_model.decisions import Choice
from lms3d.engine.step_model.fit import Solution
from lms3d.engine.step_model.pool import NO_POOL, Pool
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import build


@dataclass(frozen=True)
class Rung:
    """The plan for a budget, and what the program says of it: no plan costs less than `bound_seconds`, and for each byte less
    at least `seconds_per_byte` more. lowest: nothing fits in the budget; the plan is one of the lowest."""

    budget_bytes: int
    plan: Candidate
    bound_seconds: float
    seconds_per_byte: float
    lowest: bool = False

    def bound_at(self, budget_bytes: int) -> float:
        """A lower bound of what a plan for a smaller budget costs."""
        return self.bound_seconds + self.seconds_per_byte * max(self.budget_bytes - budget_bytes, 0)


class _Covered(NamedTuple):
    """A program's result for a target, and its plan: excess_bytes above the budget (LADDER-3)."""

    cover: Cover
    plan: Candidate
    links: Links
    target_bytes: int
    excess_bytes: int


class Ladder:
    """The plans of one step by budget, each made when it is first asked for. account: pays for them."""

    def __init__(self, problem: Problem, machine: Machine, account: Account) -> None:
        self.problem, self.machine, self.account = problem, machine, account
        self.unplanned = self.build({})
        schedule = self.unplanned.schedule
        spans = {c.buffer: ((c.start, c.end),) for c in schedule.copies}
        self.held = Held(schedule.live_bytes, spans, [b.bytes for b in problem.buffers])
        self._rungs: dict[int, Rung] = {}

    def under(self, budget_bytes: int) -> Rung:
        """The highest rung within a budget."""
        return self.rung(self.number(budget_bytes))

    def budget_bytes(self, number: int) -> int:
        return int(tuning.RUNG**number)

    def number(self, budget_bytes: int) -> int:
        """Of the largest budget of the ladder that is no more than this one."""
        return math.floor(math.log(max(budget_bytes, 1)) / math.log(tuning.RUNG))

    def rung(self, number: int) -> Rung:
        if number not in self._rungs:
            self._rungs[number] = self.at(self.budget_bytes(number))
        return self._rungs[number]

    def at(self, budget_bytes: int) -> Rung:
        """LADDER-3."""
        if self.unplanned.schedule.peak_bytes <= budget_bytes:
            return Rung(budget_bytes, self.unplanned, self.unplanned.schedule.cost_seconds, 0.0)
        first = least = tried = self._covered(budget_bytes, budget_bytes, Links(self.problem, self.machine))
        for n in range(tuning.RUNG_TRIES):
            if least.excess_bytes <= 0:
                break
            if n < tuning.RUNG_TRIES // 2:
                links = Links(self.problem, self.machine, tried.plan.schedule.copies)
                tried = self._covered(budget_bytes, budget_bytes, links)
            else:
                tried = self._covered(budget_bytes, least.target_bytes - least.excess_bytes, least.links)
            least = min(least, tried, key=lambda found: found.excess_bytes)
        bound = self.unplanned.schedule.cost_seconds + first.cover.bound_seconds
        return Rung(budget_bytes, least.plan, bound, first.cover.seconds_per_byte, least.cover.above_bytes > 0)

    def _covered(self, budget_bytes: int, target_bytes: int, links: Links) -> _Covered:
        able = ways(self.problem, self.machine, links)
        self.account.charge_cover(len(able))
        found = cover(self.held, able, target_bytes)
        choices = {b: way.choice for b, way in found.taken.items()}
        for b in sorted(frozenset[int]().union(*(way.through for way in found.taken.values())) - choices.keys()):
            choices[b] = passing(self.problem.buffers[b])
        plan = self.build(choices)
        excess = plan.schedule.peak_bytes - max(budget_bytes, target_bytes + found.above_bytes)
        return _Covered(found, plan, links, target_bytes, excess)

    def build(self, choices: dict[int, Choice]) -> Candidate:
        schedule = build(self.problem, choices, self.machine)
        self.account.charge_schedule(len(self.problem.anchors), len(schedule.copies) - len(self.problem.buffers))
        return Candidate(choices, schedule)


def rung_seconds(problem: Problem) -> float:
    """The most that a rung costs, if a buffer has two ways to leave: as many as those of the networks here have at most."""
    return tuning.WAY_SECONDS * 2 * len(problem.buffers) * (1 + tuning.RUNG_TRIES)


def applies(problem: Problem) -> bool:
    """Whether a step has so many pieces, by slicing, that it is planned here."""
    return len(problem.graph.ops) > tuning.COMPARED_OPS and any(op.group for op in problem.graph.ops)


def solve(
    ladder: Ladder,
    limit_bytes: int,
    *,
    pool: Pool = NO_POOL,
    seconds: float | None = None,
    lowest: Callable[[], Solution] | None = None,
) -> Solution:
    """The cheapest plan found that fits in the limit; where none does, one that does not.

    pool: how the device hands out its memory. seconds: what looking for cheaper plans may cost (`effort`), once one fits. lowest:
    gives the plan of the floor, if no rung fits.
    """
    found = _Descent(ladder, limit_bytes, pool, tuning.LADDER_SECONDS if seconds is None else seconds)
    found.walk()
    if found.best is None and lowest is not None:
        low = lowest()
        return fit.check(ladder.problem, low.choices, low.schedule, limit_bytes, pool, ladder.account)
    return found.best or found.last


class _Descent:
    """LADDER-2. best: the cheapest plan so far that fits; last: the one that was looked at last."""

    def __init__(self, ladder: Ladder, limit_bytes: int, pool: Pool, seconds: float) -> None:
        self.ladder, self.limit_bytes, self.pool = ladder, limit_bytes, pool
        self.late = ladder.account.seconds + seconds
        self.top = ladder.number(pool.usable_bytes(limit_bytes))
        self.best: Solution | None = None
        self.checked: dict[int, Solution] = {}

    @property
    def last(self) -> Solution:
        return list(self.checked.values())[-1]

    def fits(self, number: int) -> bool:
        """Whether the plan of a rung fits in the limit."""
        rung = self.ladder.rung(number)
        if number not in self.checked:
            found = fit.check(self.ladder.problem, *rung.plan, self.limit_bytes, self.pool, self.ladder.account)
            self.checked[number] = found = replace(found, bound_seconds=rung.bound_seconds)
            if found.fits and (self.best is None or _cost(found) < _cost(self.best)):
                self.best = found
        return self.checked[number].fits

    def walk(self) -> None:
        """From the highest rung that fits downwards, as long as a cheaper plan may be found there."""
        number = self._highest()
        while self.best is not None and not self.ladder.rung(number).lowest:
            bound = self.ladder.rung(number).bound_at(self.ladder.budget_bytes(number - 1))
            if bound >= self.best.schedule.cost_seconds or self.ladder.account.seconds > self.late:
                return
            number -= 1
            self.fits(number)

    def _highest(self) -> int:
        """The highest rung whose plan fits, by ever larger steps down and halves of the last one up; the lowest where none does."""
        number, step = self.top, 1
        while not self.fits(number):
            if self.ladder.rung(number).lowest:
                return number
            number, step = number - step, 2 * step
        high = min((n for n in self.checked if n > number), default=number + 1)
        while high - number > 1:
            half = (number + high) // 2
            if self.fits(half):
                number = half
            else:
                high = half
        return number


def _cost(solution: Solution) -> tuple[float, int]:
    return solution.schedule.cost_seconds, solution.schedule.peak_bytes


def lowest(ladder: Ladder, *, pool: Pool = NO_POOL) -> Solution:
    """The plan that needs the smallest limit of those that are found; `limit_bytes` of the solution (LADDER-4)."""
    problem = ladder.problem
    plans = [ladder.at(0).plan, *map(ladder.build, all_moved(problem))]
    first = ladder.number(min(plan.schedule.peak_bytes for plan in plans)) + 1
    plans += [ladder.rung(first + i).plan for i in range(tuning.FLOOR_RUNGS)]
    found, limit = floor.steadiest(problem, plans, pool)
    return fit.check(problem, *found, limit, pool, ladder.account)
