"""Memory limit -> plan: which large buffers to keep, swap or recompute, and when. No TensorFlow here.

It begins with something that fits: all moved away, or else the plan of the `floor`; where not even that fits, nothing will.
Then local search (`search`) against the schedule of `schedule.build`, from two starts: the answer of a mixed-integer program
(`relaxation`) and the unplanned step. Two rough plans join what they lead to. `Search.fewest_moved` alone has chains of ops that
are computed again: a move looks at one buffer, and computing one again frees nothing if its parents must stay for it. The covering
program (`ladder`) is the better one at swapping what waits longest, within seconds at most; a short search looks for such a plan
only if it can afford a rung.
- PLAN-1: while the peak is above the budget, look at the event of the peak. Any buffer that is live there but not read or
  written there can be moved: swapped, recomputed, brought back later, written out at once, split into more copies, or both
  swapped and recomputed (`moves`). Take the move that removes the most excess bytes for the least added cost.
- PLAN-2: where no single move helps, try pairs: a move, then one at the event that is the highest after it.
- PLAN-3: once the bytes fit, undo each move that is no longer needed, the dearest first.
- PLAN-4: change one decision, hold it, repair by PLAN-1 and undo by PLAN-3; keep the result where it costs less. Repeat
  until nothing is gained or the evaluations are used up.
In a pool the schedule's allocations are replayed (`allocator`). Where the pieces of a plan do not fit, as many of its choices as
possible are taken over into the plan that fits: half of them at once, then quarters, and so on. Plans for somewhat fewer bytes
may fit as well. The cheapest of all these takes over what it can from the next ones. PLAN-3 and PLAN-4 go on from there.

PLAN-3 and PLAN-4 count what transfers cost. PLAN-1 and PLAN-2 take them as nearly free (`cost.TRANSFER_PRICE`): a descent by
the true price ends higher.

PLAN-4 is limited by evaluations, PLAN-1 to PLAN-4 by their price (`effort`: `tuning.HYBRID_SECONDS`, or what a short run
grants; half of that after a search for the floor), and the program by nodes. With little effort a plan that costs next to
nothing ends the search (EFFORT-5), there is no program, and one plan that fits is enough to begin with; the plans that descents
have reached, and the unplanned step, pull it towards them.
Swapping against recomputing as one trade-off follows Capuchin (ASPLOS 2020) and POFO (NeurIPS 2021). A local search gives
no guarantee; the program's lower bound, `Solution.bound_seconds`, tells how far from the best a plan can be at most.
Steps of thousands of slabs are planned by `ladder` instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from lms3d.engine import tuning
from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account, exact_seconds
from lms3d.engine.planners.hybrid import floor, ladder, relaxation, search
from lms3d.engine.planners.hybrid.search import Candidate, Search
from lms3d.engine.step_model import fit
from lms3d.engine.step_model.fit import Solution
from lms3d.engine.step_model.pool import NO_POOL, Pool
from lms3d.engine.step_model.problem import Problem


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
    """The cheapest plan found that fits in the limit; where none does, one that does not.

    pool: how the device hands out its memory; in a pool buffers must fit as pieces, too.
    seconds: what the search may cost (`effort`); at most and by default `tuning.HYBRID_SECONDS`, or more for a large step.
    most_swapped_bytes: per step, to the tier.
    lowest: gives the plan of the floor for this step and pool, where the caller may know it already.
    account: who pays for all this.
    """
    return _Solver(problem, limit_bytes, machine, pool, seconds, most_swapped_bytes, account or Account()).solve(lowest)


def most_seconds(problem: Problem) -> float:
    """That one search costs, however much is granted."""
    return tuning.HYBRID_SECONDS * max(1.0, len(problem.anchors) / tuning.HYBRID_ANCHORS)


class _Solver:
    """One call of `solve`. any_time: the search that pays for it all, by the true price of transfers."""

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
        self.budget = pool.usable_bytes(limit_bytes)
        enough = most_seconds(problem)
        self.seconds = enough if seconds is None else min(seconds, enough)
        self.hasty = self.seconds < enough
        good_enough = tuning.SETTLED if self.hasty else 0.0
        self.any_time = Search(problem, machine, self.seconds, most_swapped_bytes, account, good_enough)
        self.unplanned = self.any_time.build({})

    def solve(self, lowest: Callable[[], Solution] | None) -> Solution:
        any_time, good, budget = self.any_time, self._good, self.budget
        bottoms = self._moved_away()
        if not bottoms and self.most_swapped_bytes is None:
            low = lowest() if lowest else floor.lowest(self.problem, self.machine, pool=self.pool)
            if low.schedule.peak_bytes > budget:
                return self._checked(Candidate(low.choices, low.schedule))
            bottoms = [f for f in [any_time.build(low.choices)] if good(f)]
            any_time.leave_at_least(self.seconds / 2)
        rough = [f for f in [any_time.fewest_moved(good), self._covered()] if f is not None]
        if self.hasty:
            bottoms += rough
            cheapest = min(bottoms, key=search.cost, default=None)
            if cheapest is not None and any_time.settled(cheapest):
                return replace(self._checked(cheapest), bound_seconds=self.unplanned.schedule.seconds)
        starts, bound = self._starts()
        found, fitting = self._descended(starts, min(bottoms, key=search.cost, default=None))
        fitting = self._crossed(_different(sorted([*fitting, *rough], key=search.cost)))
        if not fitting:
            return self._checked(min(found, key=lambda f: f.schedule.peak_bytes))
        best = min((any_time.exchange(*f, budget, good) for f in fitting[: tuning.EXCHANGED_PLANS]), key=search.cost)
        return replace(self._checked(best), bound_seconds=bound)

    def _checked(self, found: Candidate) -> Solution:
        return fit.check(self.problem, *found, self.limit_bytes, self.pool, self.account)

    def _good(self, found: Candidate) -> bool:
        return self.any_time.allowed(found.choices) and self._checked(found).fits

    def _covered(self) -> Candidate | None:
        """The cheapest plan of the covering program that fits. A short search looks for one only if it can be found in time."""
        share = tuning.EXACT_SHARE * self.any_time.seconds_left
        if self.hasty and ladder.rung_seconds(self.problem) > share:
            return None
        before, steps = self.account.seconds, ladder.Ladder(self.problem, self.machine, self.account)
        found = ladder.solve(steps, self.limit_bytes, pool=self.pool, seconds=share if self.hasty else None)
        self.any_time.extend(0.0 if self.hasty else self.account.seconds - before)
        covered = Candidate(found.choices, found.schedule)
        return covered if found.fits and self.any_time.allowed(found.choices) else None

    def _crossed(self, fitting: list[Candidate]) -> list[Candidate]:
        """The plans, the cheapest first, and what that one becomes with choices of the next ones."""
        if len(fitting) < 2:
            return fitting
        first, *others = fitting
        crossed = self.any_time.nearest(first, others[: tuning.EXCHANGED_PLANS], self.budget, self._good)
        return _different(sorted([*crossed, *fitting], key=search.cost))

    def _moved_away(self) -> list[Candidate]:
        """What fits of the unplanned step and the two in which all is moved; only the first where time is short."""
        at_once = itertools.chain([self.unplanned], map(self.any_time.build, self.any_time.everything_moved()))
        return [*itertools.islice(filter(self._good, at_once), 1 if self.hasty else None)]

    def _starts(self) -> tuple[list[Candidate], float]:
        """Where descents begin: the program's answer, where it is asked and has one, and the unplanned step; and its bound."""
        count, unplanned = len(self.problem.anchors), self.unplanned
        affordable = not self.hasty or exact_seconds(count) <= tuning.EXACT_SHARE * self.any_time.seconds_left
        needed = unplanned.schedule.peak_bytes > self.budget >= fit.working_set_bytes(self.problem)
        if not (affordable and needed):
            return [unplanned], 0.0
        relaxed = relaxation.solve(self.problem, self.budget, self.machine)
        self.account.charge_program(count)
        self.any_time.extend(0.0 if self.hasty else exact_seconds(count))
        bound = unplanned.schedule.seconds + relaxed.bound_seconds
        if relaxed.choices is None or not self.any_time.allowed(relaxed.choices):
            return [unplanned], bound
        return [self.any_time.build(relaxed.choices), unplanned], bound

    def _descended(self, starts: list[Candidate], bottom: Candidate | None) -> tuple[list[Candidate], list[Candidate]]:
        """What descents reach, and what fits of it. Where nothing does, `bottom`, which fits, is pulled towards it."""
        any_time, budget = self.any_time, self.budget
        share = tuning.DESCENT_SHARE * any_time.seconds_left
        downhill = Search(self.problem, search.cheap(self.machine), share, self.most_swapped_bytes, self.account)
        found = self._lowered(starts, downhill, budget)
        low_enough = sorted((f for f in found if f.schedule.peak_bytes <= budget), key=search.cost)
        fitting = [f for f in low_enough if self._good(f)]
        if not fitting and bottom is not None:
            late = [*found[-1:], self.unplanned] if downhill.late else []
            fitting = any_time.nearest(bottom, low_enough[: tuning.EXCHANGED_PLANS] or late, budget, self._good)
            for fewer in tuning.FEWER_BYTES if low_enough and self.pool.in_pieces else ():
                lower = int(low_enough[0].schedule.peak_bytes * fewer)
                fitting += [f for f in self._lowered(starts, downhill, lower) if self._good(f)]
        return found, fitting

    def _lowered(self, starts: list[Candidate], downhill: Search, budget_bytes: int) -> list[Candidate]:
        """From each start downhill, and lightened again where that was far enough."""
        found: list[Candidate] = []
        for choices, _ in starts:
            low = self.any_time.build(downhill.descend(*downhill.build(choices), budget_bytes).choices)
            if low.schedule.peak_bytes <= budget_bytes:
                low = self.any_time.give_back(*low, budget_bytes)
            if all(low.choices != other.choices for other in found):
                found.append(low)
        return found


def _different(plans: list[Candidate]) -> list[Candidate]:
    """Each once. What costs and takes the same counts as the same plan, found on another way: it nearly always is."""
    known = [search.cost(plan) for plan in plans]
    return [plan for n, plan in enumerate(plans) if known[n] not in known[:n]]
