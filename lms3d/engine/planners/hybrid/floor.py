"""The floor: the smallest memory limit that a step can run in. No TensorFlow here."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import moves, search, tuning
from lms3d.engine.planners.hybrid.descent import Draft
from lms3d.engine.planners.hybrid.search import Search
from lms3d.engine.step_model import fit
from lms3d.engine.step_model.decisions import KEEP
from lms3d.engine.step_model.fit import Solution
from lms3d.engine.step_model.pool import NO_POOL, Pool
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Schedule
from lms3d.engine.tuning import SPLIT

_MIB = 1 << 20


def lowest(problem: Problem, machine: Machine, *, pool: Pool = NO_POOL, account: Account | None = None) -> Solution:
    """The plan that needs the smallest limit found, which is its `limit_bytes`.

    FLOOR-1  Descend as if time counted nothing, so that the floor hardly depends on measured speeds; then with the true times.
    FLOOR-2  Among the visited plans near the smallest peak, take the one whose pieces need the smallest pool, and to which a little
             more memory is enough as well.
    FLOOR-3  Draw other choices for a few buffers: which pieces fit is chance, and fewer bytes are not always needed.
    """
    account = account or Account()
    plan, limit_bytes = steadiest(problem, _visited(problem, machine, account), pool)
    if pool.in_pieces:
        searching = Search(problem, search.cheap(machine), tuning.FLOOR_SECONDS, account=account)
        plan, limit_bytes = _drawn(searching, plan, limit_bytes, pool)
    return fit.check(problem, *plan, limit_bytes, pool)


def _visited(problem: Problem, machine: Machine, account: Account) -> list[Draft]:
    """The plans that descents visit (FLOOR-1)."""
    timeless = Search(_timeless(problem), search.cheap(machine), tuning.FLOOR_SECONDS, account=account)
    lows = [timeless.descend(*timeless.build(c), 0) for c in ({}, next(timeless.everything_moved()))]
    highest = int(min(low.schedule.peak_bytes for low in lows) * tuning.NEAR)
    near = [plan.choices for plan in timeless.visited if plan.schedule.peak_bytes <= highest]
    timed = Search(problem, search.cheap(machine), tuning.FLOOR_SECONDS, account=account)
    for choices, _ in lows:  # transfers that are slow beside the ops hold memory longer
        timed.descend(*timed.build(choices), 0)
    different: list[Draft] = []
    for plan in (*timed.visited, *map(timed.build, near)):
        if all(plan.choices != other.choices for other in different):
            different.append(plan)
    return different


def steadiest(problem: Problem, plans: list[Draft], pool: Pool) -> tuple[Draft, int]:
    """The plan with the smallest limit, and that limit (FLOOR-2)."""
    least = min(plan.schedule.peak_bytes for plan in plans)
    near = [p for p in plans if p.schedule.peak_bytes <= least * (tuning.NEAR if pool.in_pieces else 1)]
    near = sorted(near, key=lambda plan: plan.schedule.peak_bytes)[: tuning.NEAREST]
    limits = [pool.needed_bytes(problem, schedule) for _, schedule in near]
    best = limits.index(min(limits))
    if pool.limited_cpu:
        steady = {
            i: _steady_limit(problem, near[i].schedule, limits[i], pool)
            for i in sorted(range(len(near)), key=limits.__getitem__)[: tuning.STEADY_PLANS]
        }
        known = {i: size for i, size in steady.items() if size is not None}
        if known:
            best = min(known, key=known.__getitem__)
            limits[best] = known[best]
    return near[best], limits[best]


def _drawn(searching: Search, plan: Draft, limit_bytes: int, pool: Pool) -> tuple[Draft, int]:
    """A plan with other choices that needs a smaller limit, and that limit, 1 MiB at a time (FLOOR-3, with a fixed seed).

    Drawn buffers move at once (tight), whatever transfers and ops take.
    """
    problem, draw = searching.problem, random.Random(0)
    movable = [b for b, buffer in enumerate(problem.buffers) if buffer.swappable or buffer.recomputable]
    for _ in range(tuning.DRAWS if movable else 0):
        if searching.late:
            break
        choices = plan.choices
        for b in draw.sample(movable, min(draw.choice(tuning.DRAWN), len(movable))):
            buffer = problem.buffers[b]
            modes = [moves.TIGHT_SWAP] * buffer.swappable + [moves.TIGHT_RECOMPUTE] * buffer.recomputable
            others = [KEEP, *modes, *(replace(mode, split=SPLIT) for mode in modes)]
            choices = moves.changed(choices, b, draw.choice(others))
        after = searching.build(choices)
        smaller = limit_bytes - _MIB
        schedule = after.schedule
        while not searching.late and schedule.peak_bytes < smaller and _surely_fits(searching, schedule, smaller, pool):
            plan, limit_bytes = after, smaller
            smaller -= _MIB
    return plan, limit_bytes


def _surely_fits(searching: Search, schedule: Schedule, limit_bytes: int, pool: Pool) -> bool:
    steps = tuning.STEADY_STEPS if pool.limited_cpu else 0
    sizes = (limit_bytes + i * tuning.STEADY_STEP_BYTES for i in range(steps + 1))
    return all(pool.fits(searching.problem, schedule, size, searching.account) for size in sizes)


def _timeless(problem: Problem) -> Problem:
    """The problem with equal, short times for all ops."""
    buffers = tuple(replace(b, seconds=tuning.TIMELESS_SECONDS) for b in problem.buffers)
    return replace(problem, seconds=np.full(len(problem.anchors), tuning.TIMELESS_SECONDS), buffers=buffers)


def _steady_limit(problem: Problem, schedule: Schedule, limit_bytes: int, pool: Pool) -> int | None:
    """The smallest limit near this one at which a little more memory still fits; None if there is none.

    Gaps between the weights are never quite as predicted, and must not decide which pieces fit.
    """
    fitting = 0
    for tried_bytes in range(
        limit_bytes, limit_bytes + tuning.STEADY_TRIED * tuning.STEADY_STEP_BYTES, tuning.STEADY_STEP_BYTES
    ):
        fitting = fitting + 1 if pool.fits(problem, schedule, tried_bytes) else 0
        if fitting > tuning.STEADY_STEPS:
            return tried_bytes - tuning.STEADY_STEPS * tuning.STEADY_STEP_BYTES
    return None
