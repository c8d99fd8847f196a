"""Memory limit -> plan: which large buffers to keep, swap or recompute, and when. No TensorFlow here.

First something that fits: all moved away, or else the plan of the `floor`; where not even the bytes of that fit, nothing will.
Then local search (`search`) against the schedule of `schedule.build`, from two starts, the answer of a mixed-integer program
(`exact`) and the unplanned step:
 1. While the peak is above the budget, look at the event of the peak. Every buffer that is live there but not read or
    written there can be moved away: swapped, recomputed, brought back later, written out at once, split into more copies, or
    both swapped and recomputed (`moves`). Take the move that removes the most excess bytes for the least added cost.
 2. Where no single move helps, try pairs: a move, and then one at the event that is the highest after it.
 3. When the bytes fit, give back what is not needed any more: undo each move that still fits, the dearest first.
 4. Change one decision, hold it, repair by rule 1 and give back by rule 3; keep the result where it costs less. Until
    nothing is gained, or the evaluations are used up.
In a pool the schedule's allocations are replayed (`bfc`). Where the pieces of a plan do not fit, as many of its choices are taken
over into the one that fits as can be: half of them at once, then quarters, and so on; rules 3 and 4 go on from there.

Rules 3 and 4 count what transfers cost; rules 1 and 2 take them as nearly free (`cost.TRANSFER_PRICE`), because by the true
price a descent ends on higher ground.

Rule 4 is limited by evaluations, rules 1 to 4 by what evaluations cost (`effort`: `SECONDS`, or what a short run grants; after
a search for the floor half of that is left for them at least), and the program by nodes. The clock decides nothing: equal
questions get equal plans, even on a busy machine. Where little is granted there is no program and one plan that fits is
enough to begin with; towards it come what descents have reached, and the step as it was.
Swapping against recomputing as one trade-off follows Capuchin (ASPLOS 2020) and POFO (NeurIPS 2021). A local search gives
no guarantee; the program's lower bound, `Solution.bound_seconds`, says how far from the best a plan can be at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from lms3d.swap.cost import Machine
from lms3d.swap.effort import Account, exact_seconds
from lms3d.swap.planners.hybrid import floor, relaxation, search
from lms3d.swap.planners.hybrid.problem import Problem
from lms3d.swap.planners.hybrid.search import Candidate, Search, Solution

EXCHANGED_PLANS = 2  # the cheapest that rule 4 starts from
SECONDS = 10.0  # by price list for a step of up to `ANCHORS` anchors, and for larger ones in proportion
ANCHORS = 600  # as in isensee2017
EXACT_SHARE = 0.25  # of what a run grants: the most for the program
DESCENT_SHARE = 0.6  # of what is left once it is known that something fits: for rules 1 and 2 from the starts


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

    pool: one of `bfc.POOLS`; in a pool buffers must fit as pieces, too.
    seconds: what the search may cost (`effort`); at most and by default `SECONDS`, or more for a large step.
    most_swapped_bytes: per step, to the tier.
    lowest: gives the plan of the floor for this step and pool, where the caller may know it already.
    account: who pays for all this.
    """
    account = account or Account()
    enough = SECONDS * max(1.0, len(problem.anchors) / ANCHORS)
    hasty = seconds is not None and seconds < enough
    seconds = seconds if seconds is not None and hasty else enough
    any_time = Search(problem, machine, seconds, most_swapped_bytes, account)
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
    if hasty:
        bottoms += [f for f in [any_time.fewest_moved(good)] if f is not None]
    bound, starts = 0.0, [unplanned]
    affordable = not hasty or exact_seconds(len(problem.anchors)) <= EXACT_SHARE * any_time.seconds_left
    if affordable and unplanned.schedule.peak_bytes > budget >= search.working_set_bytes(problem):
        relaxed = relaxation.solve(problem, budget, machine)
        account.solved(len(problem.anchors))
        any_time.extend(0.0 if hasty else exact_seconds(len(problem.anchors)))
        bound = unplanned.schedule.seconds + relaxed.bound_seconds
        if relaxed.choices is not None and any_time.allowed(relaxed.choices):
            starts.insert(0, any_time.build(relaxed.choices))
    downhill = Search(
        problem, search.cheap(machine), DESCENT_SHARE * any_time.seconds_left, most_swapped_bytes, account
    )
    found: list[Candidate] = []
    for choices, _ in starts:
        lowered = any_time.build(downhill.descend(*downhill.build(choices), budget).choices)
        if lowered.schedule.peak_bytes <= budget:
            lowered = any_time.give_back(*lowered, budget)
        if all(lowered.choices != other.choices for other in found):
            found.append(lowered)
    low_enough = sorted((f for f in found if f.schedule.peak_bytes <= budget), key=search.cost)
    fitting = [f for f in low_enough if good(f)]
    if not fitting and bottoms:
        goals = low_enough[:EXCHANGED_PLANS] or ([*found[-1:], unplanned] if downhill.late else [])
        fitting = any_time.nearest(min(bottoms, key=search.cost), goals, budget, good)
    if not fitting:
        return checked(min(found, key=lambda f: f.schedule.peak_bytes))
    best = min((any_time.exchange(*f, budget, good) for f in fitting[:EXCHANGED_PLANS]), key=search.cost)
    return replace(checked(best), bound_seconds=bound)
