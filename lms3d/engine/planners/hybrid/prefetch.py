"""Swap-ins that begin earlier than they must, where the memory is free anyway. No TensorFlow here.

The search lets a swap-in begin as late as still hides its transfer (SCHEDULE-4), since bytes that lie there early may cost another
tensor its place. A step whose ops take a little less than they were measured to take then waits for every one of them.

PREFETCH-1  Once a plan is chosen, each swap-in begins where it would have to if every transfer took longer by a share, or as near
            to that as the live bytes and the swap-out leave free. Who is read first has the first choice, and stays first on the
            link.
PREFETCH-2  A move is taken if the pieces of the pool still fit and the step takes no longer than before: all of them together, or
            of a group that is refused each half. What a large share is refused a smaller one may be granted.
PREFETCH-3  Without a pool nothing moves: nobody knows then what is free.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import replace

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.step_model import fit
from lms3d.engine.step_model.decisions import Mode
from lms3d.engine.step_model.pool import Pool
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Copy, Schedule, build
from lms3d.engine.tuning import PREFETCH_SHARES, PREFETCH_TRIES

_Key = tuple[int, int]  # buffer, number of the copy


def advance(solution: fit.Solution, machine: Machine, pool: Pool, account: Account) -> fit.Solution:
    """PREFETCH-2 and 3. The solution itself where no swap-in can begin earlier, or none moves bytes (SCHEDULE-6)."""
    starts: dict[_Key, int] = {}
    tries = PREFETCH_TRIES if pool.in_pieces else 0  # PREFETCH-3
    for share in PREFETCH_SHARES:
        budget = pool.usable_bytes(solution.limit_bytes)
        wanted = list(_starts(solution.problem, solution.schedule, budget, machine, share).items())
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
    solution: fit.Solution, machine: Machine, pool: Pool, starts: dict[_Key, int], account: Account
) -> fit.Solution | None:
    """The solution with other starts; None where that does not fit, or takes longer."""
    account.charge_schedule(len(solution.problem.anchors), len(solution.choices))
    schedule = build(solution.problem, solution.choices, machine, starts)
    if schedule.seconds > solution.schedule.seconds:
        return None
    found = fit.check(solution.problem, solution.choices, schedule, solution.limit_bytes, pool, account)
    return replace(found, bound_seconds=solution.bound_seconds) if found.fits else None


def _starts(problem: Problem, schedule: Schedule, budget_bytes: int, machine: Machine, share: float) -> dict[_Key, int]:
    """PREFETCH-1: the event before which a swap-in begins, of those that move."""
    moved = sorted((c for c in schedule.copies if _is_transfer(c)), key=lambda c: c.first_read)
    wished = _wished(problem, schedule, moved, machine, share)
    live = schedule.live_bytes.copy()
    free_at = {(c.buffer, c.number + 1): c.end + 1 for c in schedule.copies}  # when the copy before it is gone
    found, last = {}, 0
    for copy, wish in zip(moved, wished, strict=True):
        earliest = max(wish, last + 1, schedule.release.get(copy.buffer, 0), free_at.get((copy.buffer, copy.number), 0))
        start = copy.start
        while start > earliest and live[start - 1] + copy.bytes <= budget_bytes:
            start -= 1
        if start < copy.start:
            live[start : copy.start] += copy.bytes
            found[copy.buffer, copy.number] = start
        last = max(last, start)
    return found


def _is_transfer(copy: Copy) -> bool:
    """A swap-in that moves bytes, and is not there for the sake of its heir alone (SCHEDULE-5)."""
    return copy.mode is Mode.SWAP and copy.bytes > 0 and copy.end >= copy.start


def _wished(problem: Problem, schedule: Schedule, moved: list[Copy], machine: Machine, share: float) -> list[int]:
    """The event at which each has to begin if transfers take longer by `share`; they are in the order of their first reads."""
    begins = [0.0, *itertools.accumulate(problem.seconds_of(event) for event in schedule.events)]
    needed_by, found = float("inf"), []
    for copy in reversed(moved):
        seconds = (1 + share) * copy.bytes / machine.swap_in_bytes_per_second
        needed_by = min(needed_by, begins[copy.first_read]) - seconds
        found.append(max(1, bisect.bisect_right(begins, needed_by) - 1))
    return found[::-1]
