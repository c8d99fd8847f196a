"""Memory limit -> plan: which large buffers to keep, swap or recompute, and when. No TensorFlow here.

The search begins with a plan that fits: one that moves everything, or else the plan of the `floor`. If not even that fits, nothing
will. Then local search (`search`) improves the schedule of `schedule.build` from two starts: the answer of a mixed-integer program
(`relaxation`) and the unplanned step. Two rough plans join the results. Only `Search.fewest_moved` has chains of recomputed ops: a
move looks at one buffer, and recomputing one buffer frees nothing if its parents must stay for it. The covering program (`ladder`)
is better at swapping what waits longest, within seconds at most; a short search looks for such a plan only if it can afford a rung.
- PLAN-1: While the peak is above the budget, look at the event of the peak. Any buffer that is live there but not read or
  written there can be moved: swapped, recomputed, brought back later, written out at once, split into more copies, or both
  swapped and recomputed (`moves`). Take the move that removes the most excess bytes for the least added cost.
- PLAN-2: If no single move helps, try pairs: a move, then one at the event that is the highest after it.
- PLAN-3: Once the bytes fit, undo each move that is no longer needed, the dearest first, or let neighbouring copies become one.
- PLAN-4: Change one decision, hold it, repair by PLAN-1 and undo by PLAN-3; keep the result if it costs less. Repeat until nothing
  is gained or the evaluations are used up.
In a pool the schedule's allocations are replayed (`replay`). If the pieces of a plan do not fit, as many of its choices as possible
are taken over into the plan that fits: half of them at once, then quarters, and so on. Plans for somewhat fewer bytes may fit as
well. The cheapest of all these takes over what it can from the next ones. PLAN-3 and PLAN-4 go on from there. If that plan is dear,
`place` looks for room in others (`fragmentation`), if need be in rounds, whose descents see noise in the seconds of ops.

PLAN-3 and PLAN-4 count what transfers cost. PLAN-1 and PLAN-2 take transfers as nearly free (`TRANSFER_PRICE` in `engine.tuning`):
a descent by the true price ends higher.

PLAN-4 is limited by evaluations; PLAN-1 to PLAN-4 by their price (`effort`: `tuning.HYBRID_SECONDS`, or what a short run
grants; half of that after a search for the floor); the program by nodes. With little effort a plan that costs next to
nothing ends the search (EFFORT-5), there is no program, and one plan that fits is enough to begin with. It is then pulled towards
the plans that descents have reached, and towards the unplanned step.
Swapping against recomputing as one trade-off follows Capuchin (ASPLOS 2020) and POFO (NeurIPS 2021). A local search gives
no guarantee; the program's lower bound, `Solution.bound_seconds`, tells how far from the best a plan can be at most.
Steps of thousands of slabs are planned by `ladder` instead.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account, exact_seconds
from lms3d.engine.planners.hybrid import floor, ladder, relaxation, search, tuning
from lms3d.engine.planners.hybrid.descent import Draft, cost
from lms3d.engine.planners.hybrid.fragmentation import Pieces
from lms3d.engine.planners.hybrid.search import Search
from lms3d.engine.step_model import fit
from lms3d.engine.step_model.fit import Solution
from lms3d.engine.step_model.pool import NO_POOL, Pool
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.tuning import SETTLED


def solve(
    problem: Problem,
    limit_bytes: int,
    machine: Machine,
    *,
    pool: Pool = NO_POOL,
    seconds: float | None = None,
    most_swapped_bytes: int | None = None,
    lowest: Callable[[], Solution] | None = None,
    account: Account | None = None,
) -> Solution:
    """The cheapest plan found that fits in the limit; if none does, one that does not.

    pool: how the device hands out its memory; in a pool buffers must fit as pieces, too.
    seconds: what the search may cost (`effort`); at most and by default `tuning.HYBRID_SECONDS`, or more for a large step.
    most_swapped_bytes: that the plan may write to the tier per step.
    lowest: gives the plan of the floor for this step and pool, which the caller may know already.
    account: pays for all this.
    """
    return _Solver(problem, limit_bytes, machine, pool, seconds, most_swapped_bytes, account or Account()).solve(lowest)


def place(
    best: Solution,
    machine: Machine,
    *,
    pool: Pool,
    most_swapped_bytes: int | None = None,
    account: Account | None = None,
) -> list[Solution]:
    """Solutions that are cheaper than `best`, which fits in a pool: room is looked for in plans that are cheap by bytes alone
    (`fragmentation`). The cheapest comes last. Other arguments: see `solve`."""
    account = account or Account()
    solver = _Solver(best.problem, best.limit_bytes, machine, pool, None, most_swapped_bytes, account)
    return solver.place(best, tuning.PLACED_SECONDS * tuning.in_proportion(len(best.problem.anchors)))


def most_seconds(problem: Problem) -> float:
    """The most effort that one search takes, however much is granted."""
    return tuning.HYBRID_SECONDS * tuning.in_proportion(len(problem.anchors))


class _Solver:
    """One call of `solve` or `place`. search: pays for everything, by the true price of transfers. hasty: it is granted less effort
    than it could use."""

    def __init__(
        self,
        problem: Problem,
        limit_bytes: int,
        machine: Machine,
        pool: Pool,
        seconds: float | None,
        most_swapped_bytes: int | None,
        account: Account,
    ) -> None:
        self.problem, self.limit_bytes, self.machine, self.pool = problem, limit_bytes, machine, pool
        self.most_swapped_bytes, self.account = most_swapped_bytes, account
        self.budget_bytes = pool.usable_bytes(limit_bytes)
        enough = most_seconds(problem)
        self.seconds = enough if seconds is None else min(seconds, enough)
        self.hasty = self.seconds < enough
        good_enough = SETTLED if self.hasty else 0.0
        self.search = Search(problem, machine, self.seconds, most_swapped_bytes, account, good_enough)
        self.unplanned = self.search.build({})

    def solve(self, lowest: Callable[[], Solution] | None) -> Solution:
        bottoms = self._moved_away()
        if not bottoms and self.most_swapped_bytes is None:
            low = lowest() if lowest else floor.lowest(self.problem, self.machine, pool=self.pool)
            if low.schedule.peak_bytes > self.budget_bytes:
                return self._checked(Draft(low.choices, low.schedule))
            bottoms = [plan for plan in [self.search.build(low.choices)] if self._good(plan)]
            self.search.leave_at_least(self.seconds / 2)
        rough = [plan for plan in [self.search.fewest_moved(self._good), self._covered()] if plan is not None]
        if self.hasty:
            bottoms += rough
            cheapest = min(bottoms, key=cost, default=None)
            if cheapest is not None and self.search.settled(cheapest):
                return replace(self._checked(cheapest), bound_seconds=self.unplanned.schedule.seconds)
        starts, bound = self._starts()
        reached, fitting = self._descended(starts, min(bottoms, key=cost, default=None))
        fitting = self._crossed(_different(sorted([*fitting, *rough], key=cost)))
        if not fitting:
            return self._checked(min(reached, key=lambda plan: plan.schedule.peak_bytes))
        return replace(self._checked(self._exchanged(fitting)), bound_seconds=bound)

    def place(self, best: Solution, seconds: float) -> list[Solution]:
        """Solutions to which plans lead that are cheap by bytes alone, each cheaper than the one before. While the last is dear,
        more such plans are looked for, in rounds."""
        pieces, found, in_vain = Pieces(self.search, self.limit_bytes, self.pool), [best], 0
        self.search.extend(seconds - self.search.seconds_left)
        for number in itertools.count():
            plans = self._cheap_by_bytes(number)
            solution = self._with_room(pieces, found[-1], plans)
            cheaper = solution.schedule.cost_seconds < found[-1].schedule.cost_seconds
            found += [solution] if cheaper else []
            in_vain = 0 if cheaper or not number else in_vain + 1
            if number == 0:
                self.search.extend(tuning.ROUNDS_SHARE * seconds - self.search.seconds_left)
            if found[-1].lost_share <= tuning.DEAR or in_vain > tuning.ROUNDS_IN_VAIN or self.search.late:
                return found[1:]
        raise AssertionError("the effort ends")

    def _with_room(self, pieces: Pieces, best: Solution, plans: list[Draft]) -> Solution:
        """The solution, or a cheaper one that these plans lead to."""
        plan = pieces.improved(Draft(best.choices, best.schedule), _different(plans))
        return replace(self._checked(plan), bound_seconds=min(best.bound_seconds, cost(plan)[0]))

    def _cheap_by_bytes(self, number: int) -> list[Draft]:
        """Plans that are cheap if their pieces need not fit, for round `number` of `place`. The first round tries each share of the
        budget, while effort is left."""
        problem = _noisy(self.problem, number) if number else self.problem
        shares = [tuning.STARTS[-number % len(tuning.STARTS)]] if number else tuning.STARTS
        started = self.search.seconds_left
        solver = _Solver(
            problem, self.limit_bytes, self.machine, self.pool, None, self.most_swapped_bytes, self.account
        )
        starts, _ = solver._starts()
        downhill = Search(problem, search.cheap(self.machine), started, self.most_swapped_bytes, self.account)
        seen: list[Draft] = []

        def keep(plan: Draft) -> bool:
            seen.append(plan)
            return True

        for share in shares:
            if self.search.seconds_left < (1 - tuning.STARTS_SHARE) * started:
                break
            budget_bytes = int(self.budget_bytes * share)
            for low in self._lowered(starts, downhill, budget_bytes):
                if low.schedule.peak_bytes <= self.budget_bytes and keep(low):
                    self.search.exchange(*low, budget_bytes, keep, tuning.EXCHANGED_EACH)
        return seen

    def _exchanged(self, fitting: list[Draft]) -> Draft:
        """The best of what the cheapest plans become by PLAN-4."""
        cheapest = fitting[: tuning.EXCHANGED_PLANS]
        return min((self.search.exchange(*plan, self.budget_bytes, self._good) for plan in cheapest), key=cost)

    def _checked(self, plan: Draft) -> Solution:
        return fit.check(self.problem, *plan, self.limit_bytes, self.pool, self.account)

    def _good(self, plan: Draft) -> bool:
        return self.search.allowed(plan.choices) and self._checked(plan).fits

    def _covered(self) -> Draft | None:
        """The cheapest plan of the covering program that fits. A short search looks for one only if it can be found in time."""
        share = tuning.EXACT_SHARE * self.search.seconds_left
        if self.hasty and ladder.rung_seconds(self.problem) > share:
            return None
        before, rungs = self.account.seconds, ladder.Ladder(self.problem, self.machine, self.account)
        solution = ladder.solve(rungs, self.limit_bytes, pool=self.pool, seconds=share if self.hasty else None)
        self.search.extend(0.0 if self.hasty else self.account.seconds - before)
        usable = solution.fits and self.search.allowed(solution.choices)
        return Draft(solution.choices, solution.schedule) if usable else None

    def _crossed(self, fitting: list[Draft]) -> list[Draft]:
        """The plans, the cheapest first, and what the cheapest becomes with choices of the next ones."""
        if len(fitting) < 2:
            return fitting
        first, *others = fitting
        crossed = self.search.nearest(first, others[: tuning.EXCHANGED_PLANS], self.budget_bytes, self._good)
        return _different(sorted([*crossed, *fitting], key=cost))

    def _moved_away(self) -> list[Draft]:
        """The plans that fit of the unplanned step and the two that move everything. Only the first of them if time is short."""
        plans = itertools.chain([self.unplanned], map(self.search.build, self.search.everything_moved()))
        return [*itertools.islice(filter(self._good, plans), 1 if self.hasty else None)]

    def _starts(self) -> tuple[list[Draft], float]:
        """The plans from which descents begin, and a lower bound of the seconds: the answer of the mixed-integer program, if it is
        asked and has one, and the unplanned step."""
        count, unplanned = len(self.problem.anchors), self.unplanned
        affordable = not self.hasty or exact_seconds(count) <= tuning.EXACT_SHARE * self.search.seconds_left
        needed = unplanned.schedule.peak_bytes > self.budget_bytes >= fit.working_set_bytes(self.problem)
        if not (affordable and needed):
            return [unplanned], 0.0
        relaxed = relaxation.solve(self.problem, self.budget_bytes, self.machine)
        self.account.charge_program(count)
        self.search.extend(0.0 if self.hasty else exact_seconds(count))
        bound = unplanned.schedule.seconds + relaxed.bound_seconds
        if relaxed.choices is None or not self.search.allowed(relaxed.choices):
            return [unplanned], bound
        return [self.search.build(relaxed.choices), unplanned], bound

    def _descended(self, starts: list[Draft], bottom: Draft | None) -> tuple[list[Draft], list[Draft]]:
        """The plans that descents reach, and which of them fit. If none does, `bottom`, which fits, is pulled towards them."""
        budget_bytes = self.budget_bytes
        share = tuning.DESCENT_SHARE * self.search.seconds_left
        downhill = Search(self.problem, search.cheap(self.machine), share, self.most_swapped_bytes, self.account)
        reached = self._lowered(starts, downhill, budget_bytes)
        low_enough = sorted((plan for plan in reached if plan.schedule.peak_bytes <= budget_bytes), key=cost)
        fitting = [plan for plan in low_enough if self._good(plan)]
        if not fitting and bottom is not None:
            late = [*reached[-1:], self.unplanned] if downhill.late else []
            goals = low_enough[: tuning.EXCHANGED_PLANS] or late
            fitting = self.search.nearest(bottom, goals, budget_bytes, self._good)
            for fewer in tuning.FEWER_BYTES if low_enough and self.pool.in_pieces else ():
                lower = int(low_enough[0].schedule.peak_bytes * fewer)
                fitting += [plan for plan in self._lowered(starts, downhill, lower) if self._good(plan)]
        return reached, fitting

    def _lowered(self, starts: list[Draft], downhill: Search, budget_bytes: int) -> list[Draft]:
        """The plan downhill of each start, lightened again if it is within the budget."""
        lowered: list[Draft] = []
        for choices, _ in starts:
            low = self.search.build(downhill.descend(*downhill.build(choices), budget_bytes).choices)
            if low.schedule.peak_bytes <= budget_bytes:
                low = self.search.give_back(*low, budget_bytes)
            if all(low.choices != other.choices for other in lowered):
                lowered.append(low)
        return lowered


def _noisy(problem: Problem, seed: int) -> Problem:
    """The problem with other seconds for each op: descents from there end elsewhere. After the noising method (Charon and Hudry,
    Operations Research Letters 14, 1993)."""
    draw = random.Random(seed)
    seconds = problem.seconds * [draw.lognormvariate(0.0, tuning.NOISE) for _ in problem.anchors]
    buffers = (replace(b, seconds=b.seconds * draw.lognormvariate(0.0, tuning.NOISE)) for b in problem.buffers)
    return replace(problem, seconds=seconds, buffers=tuple(buffers))


def _different(plans: list[Draft]) -> list[Draft]:
    """Each plan once. Plans of equal cost and peak count as one plan that was found twice: they nearly always are."""
    costs = [cost(plan) for plan in plans]
    return [plan for n, plan in enumerate(plans) if costs[n] not in costs[:n]]
