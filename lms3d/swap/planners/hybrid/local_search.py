"""Memory limit -> plan: which large buffers to keep, swap or recompute, and when. No TensorFlow here.

It begins with something that fits: all moved away, or else the plan of the `floor`; where not even that fits, nothing will.
Then local search (`search`) against the schedule of `schedule.build`, from two starts: the answer of a mixed-integer program
(`relaxation`) and the unplanned step. A rough plan (`Search.fewest_moved`) joins what they lead to. It alone has chains of ops that
are computed again: a move looks at one buffer, and computing one again frees nothing where its parents must stay for it.
- PLAN-1: while the peak is above the budget, look at the event of the peak. Any buffer that is live there but not read or
  written there can be moved: swapped, recomputed, brought back later, written out at once, split into more copies, or both
  swapped and recomputed (`moves`). Take the move that removes the most excess bytes for the least added cost.
- PLAN-2: where no single move helps, try pairs: a move, then one at the event that is the highest after it.
- PLAN-3: once the bytes fit, undo each move that is no longer needed, the dearest first.
- PLAN-4: change one decision, hold it, repair by PLAN-1 and undo by PLAN-3; keep the result where it costs less. Repeat
  until nothing is gained or the evaluations are used up.
In a pool the schedule's allocations are replayed (`allocator`). Where the pieces of a plan do not fit, as many of its choices as
possible are taken over into the plan that fits: half of them at once, then quarters, and so on. Plans for somewhat fewer bytes
may fit as well. PLAN-3 and PLAN-4 go on from the cheapest of all these.

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

from lms3d.swap import tuning
from lms3d.swap.cost import Machine
from lms3d.swap.effort import Account, exact_seconds
from lms3d.swap.planners.hybrid import floor, relaxation, search
from lms3d.swap.planners.hybrid.problem import Problem
from lms3d.swap.planners.hybrid.search import Candidate, Search, Solution


def solve(
    problem: Problem,
    limit_bytes: int,
    machine: Machine,
    *,
    pool: str = "none",
    seconds: float | None = None,
    most_swapped_bytes: int | None = None,
    lowest: Callable[[], Solution] | None = None,
    account: Account | None = None,
) -> Solution:
    """The cheapest plan found that fits in the limit; where none does, one that does not.

    pool: one of `allocator.POOLS`; in a pool buffers must fit as pieces, too.
    seconds: what the search may cost (`effort`); at most and by default `tuning.HYBRID_SECONDS`, or more for a large step.
    most_swapped_bytes: per step, to the tier.
    lowest: gives the plan of the floor for this step and pool, where the caller may know it already.
    account: who pays for all this.
    """
    account = account or Account()
    enough = most_seconds(problem)
    hasty = seconds is not None and seconds < enough
    seconds = seconds if seconds is not None and hasty else enough
    good_enough = tuning.SETTLED if hasty else 0.0
    any_time = Search(problem, machine, seconds, most_swapped_bytes, account, good_enough)
    budget = search.usable_bytes(problem, limit_bytes, pool)

    def checked(found: Candidate) -> Solution:
        return search.check(problem, *found, limit_bytes, pool, account)

    def good(found: Candidate) -> bool:
        return any_time.allowed(found.choices) and checked(found).fits

    unplanned = any_time.build({})
    at_once = itertools.chain([unplanned], map(any_time.build, any_time.everything_moved()))
    bottoms = [*itertools.islice(filter(good, at_once), 1 if hasty else None)]
    if not bottoms and most_swapped_bytes is None:
        low = (lowest or (lambda: floor.lowest(problem, machine, pool=pool)))()
        if low.schedule.peak_bytes > budget:
            return checked(Candidate(low.choices, low.schedule))
        bottoms = [f for f in [any_time.build(low.choices)] if good(f)]
        any_time.leave_at_least(seconds / 2)
    rough = [f for f in [any_time.fewest_moved(good)] if f is not None]
    if hasty:
        bottoms += rough
        cheapest = min(bottoms, key=search.cost, default=None)
        if cheapest is not None and any_time.settled(cheapest):
            return replace(checked(cheapest), bound_seconds=unplanned.schedule.seconds)
    bound, starts = 0.0, [unplanned]
    affordable = not hasty or exact_seconds(len(problem.anchors)) <= tuning.EXACT_SHARE * any_time.seconds_left
    if affordable and unplanned.schedule.peak_bytes > budget >= search.working_set_bytes(problem):
        relaxed = relaxation.solve(problem, budget, machine)
        account.charge_program(len(problem.anchors))
        any_time.extend(0.0 if hasty else exact_seconds(len(problem.anchors)))
        bound = unplanned.schedule.seconds + relaxed.bound_seconds
        if relaxed.choices is not None and any_time.allowed(relaxed.choices):
            starts.insert(0, any_time.build(relaxed.choices))
    downhill = Search(
        problem, search.cheap(machine), tuning.DESCENT_SHARE * any_time.seconds_left, most_swapped_bytes, account
    )

    def lowered(budget_bytes: int) -> list[Candidate]:
        """From each start downhill, and lightened again where that was far enough."""
        found: list[Candidate] = []
        for choices, _ in starts:
            low = any_time.build(downhill.descend(*downhill.build(choices), budget_bytes).choices)
            if low.schedule.peak_bytes <= budget_bytes:
                low = any_time.give_back(*low, budget_bytes)
            if all(low.choices != other.choices for other in found):
                found.append(low)
        return found

    found = lowered(budget)
    low_enough = sorted((f for f in found if f.schedule.peak_bytes <= budget), key=search.cost)
    fitting = [f for f in low_enough if good(f)]
    if not fitting and bottoms:
        goals = low_enough[: tuning.EXCHANGED_PLANS] or ([*found[-1:], unplanned] if downhill.late else [])
        fitting = any_time.nearest(min(bottoms, key=search.cost), goals, budget, good)
        for share in tuning.FEWER_BYTES if low_enough and pool != "none" else ():
            fitting += [f for f in lowered(int(low_enough[0].schedule.peak_bytes * share)) if good(f)]
    fitting = _different(sorted([*fitting, *rough], key=search.cost))
    if not fitting:
        return checked(min(found, key=lambda f: f.schedule.peak_bytes))
    best = min((any_time.exchange(*f, budget, good) for f in fitting[: tuning.EXCHANGED_PLANS]), key=search.cost)
    return replace(checked(best), bound_seconds=bound)


def most_seconds(problem: Problem) -> float:
    """That one search costs, however much is granted."""
    return tuning.HYBRID_SECONDS * max(1.0, len(problem.anchors) / tuning.HYBRID_ANCHORS)


def _different(plans: list[Candidate]) -> list[Candidate]:
    """Each once. What costs and takes the same counts as the same plan, found on another way: it nearly always is."""
    known = [search.cost(plan) for plan in plans]
    return [plan for n, plan in enumerate(plans) if known[n] not in known[:n]]
