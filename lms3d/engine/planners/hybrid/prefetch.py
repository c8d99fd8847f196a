"""Swap-ins that begin earlier than they must, where the memory is free anyway. No TensorFlow here.

The search lets a swap-in begin as late as still hides its transfer (SCHEDULE-4), since bytes that are on the device early may cost
another tensor its place. If the ops take a little less time than they were measured to take, the step then waits for every
swap-in.

PREFETCH-1  Once a plan is chosen, each swap-in begins where it would have to if every transfer took longer by a share, or as near
            to that as the live bytes and the swap-out allow. The copy that is read first has the first choice, and stays first on
            the link.
PREFETCH-2  Earlier starts are taken if the pieces of the pool still fit and the step takes no longer than before: all of them
            together, or, if a group is refused, each half of it. Starts that are refused for a large share are tried for smaller
            ones.
PREFETCH-3  Without a pool nothing begins earlier: nobody knows then which memory is free.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import replace

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid.tuning import PREFETCH_SHARES, PREFETCH_TRIES
from lms3d.engine.step_model import fit
from lms3d.engine.step_model.decisions import Mode
from lms3d.engine.step_model.fit import Solution
from lms3d.engine.step_model.pool import Pool
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Copy, Schedule, build

_Starts = dict[tuple[int, int], int]
"""(buffer, number of the copy) -> event at which its swap-in begins"""


def advance(solution: Solution, machine: Machine, pool: Pool, account: Account) -> Solution:
    """The solution with earlier swap-ins (PREFETCH-2, PREFETCH-3). Without any it is the one that was given."""
    starts: _Starts = {}
    tries = PREFETCH_TRIES if pool.in_pieces else 0  # PREFETCH-3
    for share in PREFETCH_SHARES:
        budget_bytes = pool.usable_bytes(solution.limit_bytes)
        wanted = list(_earlier_starts(solution.problem, solution.schedule, budget_bytes, machine, share).items())
        groups = [wanted] if wanted else []
        while groups and tries:
            group, tries = groups.pop(), tries - 1
            more = starts | dict(group)
            better = _with_starts(solution, machine, pool, more, account)
            if better is not None:
                solution, starts = better, more
            elif len(group) > 1:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
    return solution


def _with_starts(
    solution: Solution, machine: Machine, pool: Pool, starts: _Starts, account: Account
) -> Solution | None:
    """The solution with other starts; None if that does not fit, or takes longer."""
    account.charge_schedule(len(solution.problem.anchors), len(solution.choices))
    schedule = build(solution.problem, solution.choices, machine, starts)
    if schedule.seconds > solution.schedule.seconds:
        return None
    earlier = fit.check(solution.problem, solution.choices, schedule, solution.limit_bytes, pool, account)
    return replace(earlier, bound_seconds=solution.bound_seconds) if earlier.fits else None


def _earlier_starts(problem: Problem, schedule: Schedule, budget_bytes: int, machine: Machine, share: float) -> _Starts:
    """The starts of those swap-ins that can begin earlier (PREFETCH-1)."""
    moved = sorted((c for c in schedule.copies if _is_transfer(c)), key=lambda c: c.first_read)
    wished = _wished(problem, schedule, moved, machine, share)
    live = schedule.live_bytes.copy()
    free_at = {(c.buffer, c.number + 1): c.end + 1 for c in schedule.copies}  # when the copy before it is gone
    starts, last = {}, 0
    for copy, wish in zip(moved, wished, strict=True):
        earliest = max(wish, last + 1, schedule.release.get(copy.buffer, 0), free_at.get((copy.buffer, copy.number), 0))
        start = copy.start
        while start > earliest and live[start - 1] + copy.bytes <= budget_bytes:
            start -= 1
        if start < copy.start:
            live[start : copy.start] += copy.bytes
            starts[copy.buffer, copy.number] = start
        last = max(last, start)
    return starts


def _is_transfer(copy: Copy) -> bool:
    """Whether a copy is a swap-in that moves bytes, and does more than allocate for its heir (SCHEDULE-5)."""
    return copy.mode is Mode.SWAP and copy.bytes > 0 and copy.end >= copy.start


def _wished(problem: Problem, schedule: Schedule, moved: list[Copy], machine: Machine, share: float) -> list[int]:
    """The event at which each swap-in must begin if transfers take longer by `share`. `moved` is in the order of first reads."""
    begins = [0.0, *itertools.accumulate(problem.seconds_of(event) for event in schedule.events)]
    needed_by, wished = float("inf"), []
    for copy in reversed(moved):
        seconds = (1 + share) * copy.bytes / machine.swap_in_bytes_per_second
        needed_by = min(needed_by, begins[copy.first_read]) - seconds
        wished.append(max(1, bisect.bisect_right(begins, needed_by) - 1))
    return wished[::-1]
