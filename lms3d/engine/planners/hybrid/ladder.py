"""Memory limit -> plan, for steps of thousands of pieces: plans for fixed budgets; a limit takes the cheapest that fits.

A step whose large tensors are slabs has ten times as many buffers as one of whole tensors, too many to move one at a time
(`local_search`). But nearly all that a plan holds is a sum over buffers, and the best sum under a budget is a linear program
of a special kind (`covering`). It takes milliseconds to seconds, and its plans are within a few per cent of its own lower bound.

LADDER-1  The budgets are the powers of `tuning.RUNG`, whatever the limit. A limit takes the cheapest plan that fits in it.
          So a larger limit has all the plans of a smaller one to choose from: more memory is never slower, and a tighter limit
          never has a higher peak. (The pieces of a pool are an exception: that they fit in a larger one is likely, not certain.
          Polished plans may be another, by little.)
LADDER-2  The largest budget in the limit comes first. Smaller ones follow while their plans do not fit the pool, or while the
          program's lower bound says that one may be cheaper. Bounds are convex in the budget, so one program bounds all others.
LADDER-3  A plan is built exactly. If its peak is above its budget, the program is solved again with the times that its transfers
          really take. That may swing. So from the closest of these plans on, the program is solved for a budget that is smaller
          by the excess. Then the plan is polished (`polish`).
LADDER-4  The floor is the smallest limit in which any plan near the lowest budget fits, the plans that move everything included
          (FLOOR-2).
LADDER-5  In a pool it is chance whose pieces fit. Room is looked for in much cheaper plans whose bytes fit, but not their pieces
          (`fragmentation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import floor, tuning
from lms3d.engine.planners.hybrid.candidates import Candidates, all_moved
from lms3d.engine.planners.hybrid.covering import Cover, UnplannedStep, cover
from lms3d.engine.planners.hybrid.descent import Draft
from lms3d.engine.planners.hybrid.fragmentation import Pieces
from lms3d.engine.planners.hybrid.links import Links
from lms3d.engine.planners.hybrid.polish import Polish
from lms3d.engine.planners.hybrid.remat import for_others_alone
from lms3d.engine.planners.hybrid.search import Search
from lms3d.engine.step_model import fit
from lms3d.engine.step_model.decisions import Choice
from lms3d.engine.step_model.fit import Solution
from lms3d.engine.step_model.pool import NO_POOL, Pool
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import build
from lms3d.engine.tuning import CANDIDATE_SECONDS


@dataclass(frozen=True)
class Rung:
    """The plan for a budget, and the program's bounds: no plan for it costs less than `bound_seconds`; a smaller budget costs at
    least `seconds_per_byte` more for each byte. lowest: nothing fits in the budget; the plan is one of the lowest."""

    budget_bytes: int
    plan: Draft
    bound_seconds: float
    seconds_per_byte: float
    lowest: bool = False

    def bound_at(self, budget_bytes: int) -> float:
        """A lower bound of the seconds that a plan for a smaller budget costs."""
        return self.bound_seconds + self.seconds_per_byte * max(self.budget_bytes - budget_bytes, 0)


class _Covered(NamedTuple):
    """A program's result for a target, and its plan. excess_bytes: how far the peak is above the budget (LADDER-3)."""

    cover: Cover
    plan: Draft
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
        self.unplanned_step = UnplannedStep(schedule.live_bytes, spans, [b.bytes for b in problem.buffers])
        self.candidates = Candidates(problem, machine)
        self.polish = Polish(problem, machine, account)
        self._rungs: dict[int, Rung] = {}

    def budget_bytes(self, number: int) -> int:
        return int(tuning.RUNG**number)

    def number(self, budget_bytes: int) -> int:
        """The number of the largest budget of the ladder that is within this one."""
        return math.floor(math.log(max(budget_bytes, 1)) / math.log(tuning.RUNG))

    def rung(self, number: int) -> Rung:
        if number not in self._rungs:
            self._rungs[number] = self.make_rung(self.budget_bytes(number))
        return self._rungs[number]

    def make_rung(self, budget_bytes: int) -> Rung:
        """The rung of any budget (LADDER-3)."""
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
            least = min(least, tried, key=lambda covered: covered.excess_bytes)
        bound = self.unplanned.schedule.cost_seconds + first.cover.bound_seconds
        plan = self.polish(least.plan, budget_bytes) if applies(self.problem) else least.plan
        bound = min(bound, plan.schedule.cost_seconds)  # the program's; a polished plan may have what no candidate has
        return Rung(budget_bytes, plan, bound, first.cover.seconds_per_byte, least.cover.above_bytes > 0)

    def _covered(self, budget_bytes: int, target_bytes: int, links: Links) -> _Covered:
        possible = self.candidates.beside(links)
        self.account.charge_cover(len(possible))
        covered = cover(self.unplanned_step, possible, target_bytes)
        choices = {b: candidate.choice for b, candidate in covered.taken.items()}
        through = {b for candidate in covered.taken.values() for b, _ in candidate.through}
        for b in sorted(through - choices.keys()):
            choices[b] = for_others_alone(self.problem.buffers[b])
        plan = self.build(choices)
        excess = plan.schedule.peak_bytes - max(budget_bytes, target_bytes + covered.above_bytes)
        return _Covered(covered, plan, links, target_bytes, excess)

    def build(self, choices: dict[int, Choice]) -> Draft:
        schedule = build(self.problem, choices, self.machine)
        self.account.charge_schedule(len(self.problem.anchors), len(schedule.copies) - len(self.problem.buffers))
        return Draft(choices, schedule)


def rung_seconds(problem: Problem) -> float:
    """The most effort that a rung costs if each buffer has two candidates: about as many as in the networks measured so far."""
    return CANDIDATE_SECONDS * 2 * len(problem.buffers) * (1 + tuning.RUNG_TRIES)


def applies(problem: Problem) -> bool:
    """Whether a step has so many pieces, because it is sliced, that it is planned here."""
    return len(problem.graph.ops) > tuning.COMPARED_OPS and any(op.group for op in problem.graph.ops)


def solve(
    ladder: Ladder,
    limit_bytes: int,
    *,
    pool: Pool = NO_POOL,
    seconds: float | None = None,
    lowest: Callable[[], Solution] | None = None,
) -> Solution:
    """The cheapest plan found that fits in the limit; if none does, one that does not.

    pool: how the device hands out its memory. seconds: what looking for cheaper plans may cost (`effort`), once one fits. lowest:
    gives the plan of the floor, if no rung fits.
    """
    granted = tuning.LADDER_SECONDS if seconds is None else seconds
    walk = _Walk(ladder, limit_bytes, pool, granted)
    walk.down()
    best = walk.best
    if best is None and lowest is not None:
        low = lowest()
        best = fit.check(ladder.problem, low.choices, low.schedule, limit_bytes, pool, ladder.account)
    if best is not None and best.fits and applies(ladder.problem) and (cheaper := walk.misplaced(best)):
        most_seconds = tuning.NEARER_SECONDS * tuning.in_proportion(len(ladder.problem.anchors))
        return _placed(ladder, best, cheaper, pool, most_seconds if seconds is None else min(seconds, most_seconds))
    return best or walk.last


def _placed(ladder: Ladder, here: Solution, cheaper: list[Draft], pool: Pool, seconds: float) -> Solution:
    """A plan whose pieces fit, from cheaper plans whose pieces do not (LADDER-5)."""
    pieces = Pieces(Search(ladder.problem, ladder.machine, seconds, account=ladder.account), here.limit_bytes, pool)
    best = pieces.improved(Draft(here.choices, here.schedule), cheaper)
    checked = fit.check(ladder.problem, *best, here.limit_bytes, pool, ladder.account)
    return replace(checked, bound_seconds=min(here.bound_seconds, best.schedule.cost_seconds))


class _Walk:
    """The search of LADDER-2. best: the cheapest plan so far that fits. last: the plan that was looked at last."""

    def __init__(self, ladder: Ladder, limit_bytes: int, pool: Pool, seconds: float) -> None:
        self.ladder, self.limit_bytes, self.pool = ladder, limit_bytes, pool
        self.deadline = ladder.account.seconds + seconds
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
            solution = fit.check(self.ladder.problem, *rung.plan, self.limit_bytes, self.pool, self.ladder.account)
            self.checked[number] = solution = replace(solution, bound_seconds=rung.bound_seconds)
            if solution.fits and (self.best is None or _cost(solution) < _cost(self.best)):
                self.best = solution
        return self.checked[number].fits

    def misplaced(self, best: Solution) -> list[Draft]:
        """The plans that were looked at whose bytes fit, but not their pieces, if they are much cheaper than this one."""
        most_bytes = self.pool.usable_bytes(self.limit_bytes)
        most_seconds = best.schedule.cost_seconds * (1 - tuning.NEARER_GAIN)
        plans = [self.ladder.rung(number).plan for number, solution in self.checked.items() if not solution.fits]
        return [p for p in plans if p.schedule.peak_bytes <= most_bytes and p.schedule.cost_seconds < most_seconds]

    def down(self) -> None:
        """From the highest rung that fits downwards, as long as a cheaper plan may be found there."""
        number = self._highest()
        while self.best is not None and not self.ladder.rung(number).lowest:
            bound = self.ladder.rung(number).bound_at(self.ladder.budget_bytes(number - 1))
            if bound >= self.best.schedule.cost_seconds or self.ladder.account.seconds > self.deadline:
                return
            number -= 1
            self.fits(number)

    def _highest(self) -> int:
        """The highest rung whose plan fits, or the lowest rung if none does: by ever larger steps down, then by halving."""
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


def _cost(plan: Solution | Draft) -> tuple[float, int]:
    return plan.schedule.cost_seconds, plan.schedule.peak_bytes


def lowest(ladder: Ladder, *, pool: Pool = NO_POOL) -> Solution:
    """The plan that needs the smallest limit found, which is its `limit_bytes` (LADDER-4)."""
    problem = ladder.problem
    plans = [ladder.make_rung(0).plan, *map(ladder.build, all_moved(problem))]
    first = ladder.number(min(plan.schedule.peak_bytes for plan in plans)) + 1
    plans += [ladder.rung(first + i).plan for i in range(tuning.FLOOR_RUNGS)]
    draft, limit_bytes = floor.steadiest(problem, plans, pool)
    return fit.check(problem, *draft, limit_bytes, pool, ladder.account)
