"""The smallest memory limit that a step can train in. No TensorFlow here."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from lms3d.swap.cost import Machine
from lms3d.swap.effort import Account
from lms3d.swap.planners.hybrid import moves, search
from lms3d.swap.planners.hybrid.problem import Problem
from lms3d.swap.planners.hybrid.schedule import KEEP, SPLIT, Schedule
from lms3d.swap.planners.hybrid.search import Found, Search, Solution

SECONDS = 10.0  # by price list (`effort`) at most: for descents, for a second look at them, and for draws
TIMELESS_SECONDS = 0.01  # of each op alike, which hides nearly all transfers
NEAR, NEAREST = 1.06, 12  # plans with a peak up to this much above the smallest are tried as pieces, so many
STEADY_PLANS = 4  # those that need the least; each has to fit at so many limits in a row, in steps of so much
STEADY_STEPS, STEADY_STEP_BYTES = 4, 2 << 20
STEADY_TRIED = 16
DRAWS = 300
DRAWN = (1, 2, 4, 8, 16, 32, 64)  # buffers that get another choice
_MIB = 1 << 20


def lowest(problem: Problem, machine: Machine, *, pool: str = "none", account: Account | None = None) -> Solution:
    """The plan that needs the smallest limit of those that are found; `limit_bytes` of the solution.

    Time counts nothing at first, so that the floor hardly depends on how fast the ops have been measured. Peaks are not enough
    to tell: among all plans that descents meet near the smallest peak, the one whose pieces need the smallest pool counts,
    and a little more is enough, too. From there draws go on: which pieces fit is chance, and often other choices for a few
    buffers need a smaller pool, though not fewer bytes.
    """
    account = account or Account()
    found, limit = _steadiest(problem, _met(problem, machine, account), pool)
    if pool != "none":
        found, limit = _drawn(Search(problem, search.cheap(machine), SECONDS, account=account), found, limit, pool)
    return search.check(problem, *found, limit, pool)


def _met(problem: Problem, machine: Machine, account: Account) -> list[Found]:
    """The plans that descents come by."""
    timeless = Search(_timeless(problem), search.cheap(machine), SECONDS, account=account)
    lows = [timeless.descend(*timeless.build(c), 0) for c in ({}, next(timeless.everything_moved()))]
    near = timeless.met(int(min(low[1].peak_bytes for low in lows) * NEAR))
    timed = Search(problem, search.cheap(machine), SECONDS, account=account)
    for choices, _ in lows:  # transfers that are slow beside the ops hold memory longer
        timed.descend(*timed.build(choices), 0)
    met: list[Found] = []
    for found in (*timed.on_the_way, *(timed.build(choices) for choices, _ in near)):
        if all(found[0] != other[0] for other in met):
            met.append(found)
    return met


def _steadiest(problem: Problem, met: list[Found], pool: str) -> tuple[Found, int]:
    """The plan with the smallest limit, and that."""
    least = min(found[1].peak_bytes for found in met)
    met = [f for f in met if f[1].peak_bytes <= least * (NEAR if pool != "none" else 1)]
    met = sorted(met, key=lambda f: f[1].peak_bytes)[:NEAREST]
    limits = [search.needed_bytes(problem, schedule, pool) for _, schedule in met]
    best = limits.index(min(limits))
    if pool == "split":
        steady = {
            i: _steady(problem, met[i][1], limits[i], pool)
            for i in sorted(range(len(met)), key=limits.__getitem__)[:STEADY_PLANS]
        }
        known = {i: limit for i, limit in steady.items() if limit is not None}
        if known:
            best = min(known, key=known.__getitem__)
            limits[best] = known[best]
    return met[best], limits[best]


def _drawn(searching: Search, found: Found, limit_bytes: int, pool: str) -> tuple[Found, int]:
    """Draws, with a fixed seed, other choices that need a smaller limit, 1 MiB at a time.

    All that are drawn move at once, so that they do not depend on what takes how long.
    """
    problem, draw = searching.problem, random.Random(0)
    able = [b for b, buffer in enumerate(problem.buffers) if buffer.swappable or buffer.recomputable]
    for _ in range(DRAWS if able else 0):
        if searching.late:
            break
        choices = found[0]
        for b in draw.sample(able, min(draw.choice(DRAWN), len(able))):
            buffer = problem.buffers[b]
            modes = [moves.TIGHT] * buffer.swappable + [moves.TIGHT_AGAIN] * buffer.recomputable
            others = [KEEP, *modes, *(replace(mode, split=SPLIT) for mode in modes)]
            choices = moves.changed(choices, b, draw.choice(others))
        after = searching.build(choices)
        smaller = limit_bytes - _MIB
        while not searching.late and after[1].peak_bytes < smaller and _surely_fits(searching, after[1], smaller, pool):
            found, limit_bytes = after, smaller
            smaller -= _MIB
    return found, limit_bytes


def _surely_fits(searching: Search, schedule: Schedule, limit_bytes: int, pool: str) -> bool:
    steps = STEADY_STEPS if pool == "split" else 0
    limits = (limit_bytes + i * STEADY_STEP_BYTES for i in range(steps + 1))
    return all(search.check(searching.problem, {}, schedule, limit, pool, searching.account).fits for limit in limits)


def _timeless(problem: Problem) -> Problem:
    buffers = tuple(replace(b, seconds=TIMELESS_SECONDS) for b in problem.buffers)
    return replace(problem, seconds=np.full(len(problem.anchors), TIMELESS_SECONDS), buffers=buffers)


def _steady(problem: Problem, schedule: Schedule, limit_bytes: int, pool: str) -> int | None:
    """The smallest limit near this one such that a little more memory is not too little, or None: gaps between the weights are
    never quite as predicted, and which pieces fit must not hang on them."""
    fitting = 0
    for limit in range(limit_bytes, limit_bytes + STEADY_TRIED * STEADY_STEP_BYTES, STEADY_STEP_BYTES):
        fitting = fitting + 1 if search.check(problem, {}, schedule, limit, pool).fits else 0
        if fitting > STEADY_STEPS:
            return limit - STEADY_STEPS * STEADY_STEP_BYTES
    return None
