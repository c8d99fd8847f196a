"""One step under many limits: which limits, what stands at them, and that all figures belong to plans that fit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest

from lms3d.engine import plan_cache, sweep, tuning
from lms3d.engine.cost import Machine
from lms3d.engine.planners import tflms
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model.pool import NO_POOL
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.sweep import LMS, RECOMPUTE_ALL, SWAP_ALL, TFLMS, TFLMS_GIVEN, TFLMS_PART, WITHOUT, Point, Sweep
from tests.lms3d.engine.toy_graphs import MIB, training

MACHINE = Machine(flops_per_second=1e10)
GRAPH = training(6, mib=4, resident_mib=3)
PROBLEM = reduce(GRAPH, MACHINE)
ANY = Settings(limit_bytes=1).request(GRAPH, MACHINE)  # the limit does not matter
LIMITS = 5


@cache
def swept() -> Sweep:
    return sweep.run(ANY, limits=LIMITS)


def only(found: Sweep, method: str) -> Point:
    (point,) = found.of(method)
    return point


def test_it_ends_at_the_floor_and_at_the_fit():
    found = swept()
    _, report = make_plan(Settings(limit_bytes=1 << 40).request(GRAPH, MACHINE))
    assert (found.floor_bytes, found.fit_bytes) == (report.floor_bytes, report.unedited_limit_bytes)
    limits = [p.limit_bytes for p in found.of(LMS)]
    assert len(limits) == LIMITS
    assert limits[0] - found.floor_bytes in range(MIB)
    assert limits[-1] - found.fit_bytes in range(MIB)
    assert all(limit % MIB == 0 for limit in limits)
    gaps = [b - a for a, b in itertools.pairwise(limits)]
    assert max(gaps) - min(gaps) <= MIB
    assert [p.limit_bytes for p in found.of(TFLMS)] == limits
    assert {p.method for p in found.points} == {LMS, TFLMS, SWAP_ALL, RECOMPUTE_ALL, WITHOUT}


def test_every_point_of_lms_fits_and_costs_what_memory_it_saves():
    points = swept().of(LMS)
    for point in points:
        assert point.fits
        assert point.peak_bytes <= point.limit_bytes
        assert point.step_seconds >= swept().unedited_seconds
        assert point.waiting_seconds >= 0
    seconds = [p.step_seconds for p in points]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[-1] == swept().unedited_seconds
    assert points[0].recomputed_ops or points[0].swapped_out_bytes
    assert (points[-1].recomputed_ops, points[-1].swapped_out_bytes) == (0, 0)


def test_tflms_may_use_the_same_share_of_a_limit():
    ours, theirs = swept().of(LMS), swept().of(TFLMS)
    fitting = [p for p in theirs if p.fits]
    assert len(fitting) >= LIMITS - 1  # it may have nothing at our floor
    assert all(p.peak_bytes <= NO_POOL.usable_bytes(p.limit_bytes) for p in fitting)
    for point in fitting[:-1]:
        budget = int(NO_POOL.usable_bytes(point.limit_bytes) / tuning.TFLMS_SAFETY) + 1
        plan = tflms.autotune(GRAPH, tflms.Parameters(), budget, MACHINE)
        assert point.swapped_out_bytes == plan.swapped_out_bytes
    assert all(p.recomputed_ops == 0 for p in fitting)
    assert all(o.step_seconds <= t.step_seconds for o, t in zip(ours, theirs, strict=True) if t.fits)


def test_parameters_of_tflms_that_are_given_have_points_only_where_they_fit():
    given = tflms.Parameters(swapout_threshold=4, swapin_ahead=1, swapin_groupby=0, sync_mode=0)
    found = sweep.run(ANY.under(parameters=given), limits=3)
    assert (found.tflms, found.of(TFLMS)) == (TFLMS_GIVEN, [])
    first, *_, last = found.of(TFLMS_GIVEN)
    assert (first.fits, first.peak_bytes, first.swapped_out_bytes) == (False, None, None)
    assert last.fits
    assert last.swapped_out_bytes > 0  # and is not tuned to the limit
    some = ANY.under(parameters=tflms.Parameters(sync_mode=2))
    assert sweep.run(some, limits=2, ends=(40 * MIB, 60 * MIB)).tflms == TFLMS_PART


@pytest.mark.parametrize("method", [SWAP_ALL, RECOMPUTE_ALL])
def test_everything_that_can_be_moved_is_and_stands_where_it_just_fits(method):
    point = only(swept(), method)
    assert point.peak_bytes <= NO_POOL.usable_bytes(point.limit_bytes)
    assert swept().floor_bytes <= point.limit_bytes < swept().fit_bytes
    assert point.step_seconds > swept().unedited_seconds
    there = sweep.run(ANY, limits=2, ends=(point.limit_bytes, swept().fit_bytes))
    assert there.of(LMS)[0].step_seconds <= point.step_seconds


def test_what_everything_means():
    swap, recompute = only(swept(), SWAP_ALL), only(swept(), RECOMPUTE_ALL)
    assert (swap.recomputed_ops, recompute.swapped_out_bytes) == (0, 0)
    # Read again on the way back and more than `tuning.SPLIT` ops away: c0 to c4 and r0 to r4, each of 4 MiB.
    assert swap.swapped_out_bytes == 10 * 4 * MIB
    assert recompute.recomputed_ops >= 10
    assert swap.waiting_seconds > 0  # far more than the links can hide
    assert recompute.waiting_seconds == pytest.approx(0)


def test_without_lms_stands_at_the_fit():
    point = only(swept(), WITHOUT)
    assert (point.limit_bytes, point.step_seconds) == (swept().fit_bytes, swept().unedited_seconds)
    assert (point.swapped_out_bytes, point.recomputed_ops) == (0, 0)


def test_below_the_floor_of_the_whole_step_it_is_planned_in_slabs():
    """Stood for by a step of smaller tensors, whose floor is lower."""
    finer = Settings(limit_bytes=1).request(training(6, mib=1, resident_mib=3), MACHINE)
    lowest = make_plan(replace(finer.under(limit_bytes=1 << 40), with_floor=True))[1].floor_bytes
    asked = []

    def sliced(limit_bytes):
        asked.append(limit_bytes)
        possible = max(limit_bytes, lowest + 2 * MIB)
        plan, made = make_plan(finer.under(limit_bytes=possible))
        return finer, plan, replace(made, slabs=((0, 8), (1, 4)))

    ends = (swept().floor_bytes, swept().fit_bytes)
    found = sweep.run(ANY, limits=6, ends=ends, sliced=sliced, slab_floor_bytes=lowest)
    below = [p for p in found.of(LMS) if p.limit_bytes < found.floor_bytes]
    assert [p.limit_bytes for p in below] == asked
    assert below[0].limit_bytes - lowest in range(MIB)
    assert {p.slabs for p in below} == {"8/4"}
    assert {p.slabs for p in found.of(LMS)} == {"8/4", "off"}
    assert not below[0].fits  # its plan was made for a larger limit
    assert found.slab_floor_bytes == below[0].limit_bytes
    assert [p.limit_bytes for p in found.of(TFLMS)] == [p.limit_bytes for p in found.of(LMS)]
    assert sweep.run(ANY, limits=2, ends=ends, sliced=sliced, slab_floor_bytes=ends[0]).slab_floor_bytes is None


def test_ends_that_are_known_are_not_looked_for(monkeypatch):
    asked = []
    made = plan_cache.cached_plan
    monkeypatch.setattr(plan_cache, "cached_plan", lambda request: asked.append(request.with_floor) or made(request))
    calls = []
    found = sweep.run(ANY, limits=3, ends=(8 * MIB, 40 * MIB), progress=lambda *call: calls.append(call))
    assert (found.floor_bytes, found.fit_bytes) == (8 * MIB, 40 * MIB)
    assert [p.limit_bytes // MIB for p in found.of(LMS)] == [8, 24, 40]
    assert [p.fits for p in found.of(LMS)] == [False, True, True]  # nothing fits in 8 MiB
    assert not any(asked)
    notes = ("8.00 MiB", "24.0 MiB", "40.0 MiB", "")
    assert calls == [(i, 3, "planning", note) for i, note in enumerate(notes)]


@pytest.mark.parametrize(("floor", "fit", "count", "limits"), [
    (10 * MIB, 40 * MIB, 4, [10, 20, 30, 40]),
    (10 * MIB, 40 * MIB, 2, [10, 40]),
    (10 * MIB + 1, 12 * MIB - 1, 9, [11, 12]),  # no two points at one limit
    (10 * MIB, 10 * MIB, 3, [10]),
])  # fmt: skip
def test_limits_are_whole_and_never_below_the_floor(floor, fit, count, limits):
    assert [limit / MIB for limit in sweep.between(floor, fit, count)] == limits
