"""Room for the pieces of plans whose bytes fit (FRAGMENT-1 to FRAGMENT-4)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import local_search, tuning
from lms3d.engine.planners.hybrid.descent import Draft, cost
from lms3d.engine.planners.hybrid.fragmentation import Pieces
from lms3d.engine.planners.hybrid.search import Search
from lms3d.engine.step_model.pool import CPU_POOL, GPU_POOL
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.schedule import build
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step, training

HOLES = step(
    placeholder(mib=0.25),
    op("a", "x", mib=4, flops=1),
    op("b", "a", mib=4, flops=1),
    op("c", "b", mib=4, flops=1),
    op("d", "a", "c", mib=0.25, flops=1),
    op("e", "d", mib=6, flops=1),
    *(op(f"f{i}", f"f{i - 1}" if i else "e", mib=0.25, flops=1) for i in range(6)),
    op("g", "b", "f5", mib=0.25, flops=1),
    resident_mib=1,
)
"""a and c leave two holes of 4 MiB around b; the 6 MiB of e fit by their sum only. b waits long enough to leave."""


def pieces(seconds: float = 10.0) -> tuple[Pieces, Draft]:
    """Pieces in a limit that is enough for the bytes of the step, and its unplanned schedule."""
    problem = reduce(HOLES, SECONDS)
    search = Search(problem, SECONDS, seconds, account=Account())
    unplanned = search.build({})
    limit_bytes = int(unplanned.schedule.peak_bytes / (1 - GPU_POOL.reserve)) + MIB // 4
    return Pieces(search, limit_bytes, GPU_POOL), unplanned


def everything_swapped(found: Pieces) -> Draft:
    """A dear plan that fits."""
    return found.search.build(next(found.search.everything_moved()))


def test_what_splits_the_free_memory_leaves():
    found, unplanned = pieces()
    assert unplanned.schedule.peak_bytes <= found.pool.usable_bytes(found.limit_bytes)
    assert not found.good(unplanned)
    assert found.good(everything_swapped(found))
    best = found.improved(everything_swapped(found), [unplanned])
    assert found.good(best)
    assert "b:0" in [found.search.problem.buffers[b].root for b in best.choices]
    assert cost(best) < cost(everything_swapped(found))


def test_a_plan_that_fits_stays_if_no_other_is_cheaper():
    found, unplanned = pieces()
    best = found.improved(everything_swapped(found), [unplanned])
    assert found.improved(best, []).choices == best.choices
    assert cost(found.improved(best, [everything_swapped(found), unplanned])) <= cost(best)


def test_without_effort_nothing_is_found():
    found, unplanned = pieces(seconds=0.0)
    best = everything_swapped(found)
    assert found.improved(best, [unplanned]).choices == best.choices


@pytest.mark.parametrize("name", ["ROOM_MOVES", "ROOM_TRIED"])
def test_without_moves_there_is_no_room(monkeypatch, name):
    monkeypatch.setattr(tuning, name, 0)
    found, unplanned = pieces()
    monkeypatch.setattr(found.search, "nearest", lambda best, *_: [best])
    best = everything_swapped(found)
    assert found.improved(best, [unplanned]).choices == best.choices


def test_a_plan_that_fits_with_the_shifts_that_were_tried_alone_is_not_taken(monkeypatch):
    monkeypatch.setattr(type(GPU_POOL), "steady", lambda *_: False)
    found, unplanned = pieces()
    best = everything_swapped(found)
    assert found.improved(best, [unplanned]) is best


@pytest.mark.parametrize("pool", [GPU_POOL, CPU_POOL])
def test_a_hasty_plan_makes_way_for_a_cheaper_one_whose_pieces_fit(pool):
    slow = Machine(flops_per_second=1e10, swap_out_bytes_per_second=2e8, swap_in_bytes_per_second=2e8)
    problem = reduce(training(16, mib=4, resident_mib=3), slow)
    limit_bytes = int(0.35 * pool.needed_bytes(problem, build(problem, {}, slow)))
    hasty = local_search.solve(problem, limit_bytes, slow, pool=pool, seconds=0.1)
    found = local_search.place(hasty, slow, pool=pool)
    assert hasty.fits
    seconds = [solution.schedule.cost_seconds for solution in (hasty, *found)]
    assert seconds == sorted({*seconds}, reverse=True)
    for solution in found:
        assert solution.fits
        assert pool.fits(problem, solution.schedule, limit_bytes)
        assert solution.bound_seconds <= solution.schedule.cost_seconds
    assert seconds[-1] < 0.95 * hasty.schedule.cost_seconds


def test_a_dear_plan_is_followed_by_rounds_of_other_plans(monkeypatch):
    slow = Machine(flops_per_second=1e10, swap_out_bytes_per_second=2e8, swap_in_bytes_per_second=2e8)
    problem = reduce(training(16, mib=4, resident_mib=3), slow)
    limit_bytes = int(0.35 * GPU_POOL.needed_bytes(problem, build(problem, {}, slow)))
    hasty = local_search.solve(problem, limit_bytes, slow, pool=GPU_POOL, seconds=0.1)
    drawn = []
    noisy = local_search._noisy
    monkeypatch.setattr(local_search, "_noisy", lambda problem, seed: drawn.append(seed) or noisy(problem, seed))
    monkeypatch.setattr(tuning, "DEAR", -math.inf)
    local_search.place(hasty, slow, pool=GPU_POOL)
    assert drawn == [*range(1, len(drawn) + 1)]
    assert len(drawn) > tuning.ROUNDS_IN_VAIN
    drawn.clear()
    monkeypatch.setattr(tuning, "DEAR", math.inf)
    local_search.place(hasty, slow, pool=GPU_POOL)
    assert not drawn


def test_noise_changes_seconds_alone():
    problem = reduce(training(16, mib=4, resident_mib=3), SECONDS)
    one, same, other = (local_search._noisy(problem, seed) for seed in (1, 1, 2))
    assert (one.seconds == same.seconds).all()
    assert (one.seconds != other.seconds).all()
    assert [replace(b, seconds=0.0) for b in one.buffers] == [replace(b, seconds=0.0) for b in problem.buffers]
    assert one.buffers == same.buffers != other.buffers
