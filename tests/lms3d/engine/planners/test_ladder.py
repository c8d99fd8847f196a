"""Steps of many pieces: the plans of `ladder`, on sliced steps without TensorFlow."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from lms3d.engine import edit
from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan
from lms3d.engine.planners.hybrid import candidates, ladder, strategy
from lms3d.engine.planners.hybrid.covering import UnplannedStep, cover
from lms3d.engine.planners.hybrid.links import Links
from lms3d.engine.planners.hybrid.polish import Polish
from lms3d.engine.planners.hybrid.search import Search
from lms3d.engine.planners.hybrid.tuning import MOST_COPIES
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model.decisions import Mode
from lms3d.engine.step_model.pool import CPU_POOL, LIMITED_GPU_POOL, NO_POOL, Pool
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.schedule import build
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.step_model.study import Study
from lms3d.errors import DoesNotFit
from tests.lms3d.engine.sliced_graphs import sliced
from tests.lms3d.engine.toy_graphs import MIB, op, placeholder, step, training

SLABS = 6
CPU = Machine(swap_out_bytes_per_second=8e9, swap_in_bytes_per_second=8e9, swap_share=2, node_seconds=1e-5, mapped=True)
GPU = replace(CPU, mapped=False, swap_share=0)
EITHER = pytest.mark.parametrize("machine", [CPU, GPU], ids=["mapped", "copied"])


@cache
def graph() -> StepGraph:
    return sliced(training(8, mib=12, resident_mib=8), lambda size: SLABS if size > 6 * MIB else 1)


def study(machine: Machine, limit: int = 1 << 40, pool: Pool = NO_POOL) -> Study:
    return Study(Settings(limit_bytes=limit, pool=pool).request(graph(), machine))


def limits(machine: Machine, count: int = 8, pool: Pool = NO_POOL) -> list[int]:
    known = study(machine, pool=pool)
    low, high = strategy.lowest(known).limit_bytes, known.unedited_limit_bytes
    return [low + (high - low) * i // count for i in range(count)]


def test_a_step_without_ops_needs_nothing():
    nothing = UnplannedStep(np.zeros(0, np.int64), {}, [])
    assert cover(nothing, [], 0).above_bytes == 0
    assert cover(nothing, [], -MIB).above_bytes == MIB


@pytest.mark.parametrize(
    ("machine", "pool"), [(CPU, NO_POOL), (CPU, CPU_POOL), (GPU, LIMITED_GPU_POOL)], ids=["mapped", "pieces", "copied"]
)
def test_every_limit_from_the_floor_on_has_a_plan_that_keeps_it(machine, pool):
    for limit in limits(machine, 2, pool):
        plan, found = make_plan(Settings(limit_bytes=limit, pool=pool).request(graph(), machine, with_floor=False))
        assert not plan.empty
        assert found.predicted_peak_bytes <= limit


@EITHER
def test_more_memory_is_never_slower_and_a_tighter_limit_never_has_a_higher_peak(machine):
    plans = [
        make_plan(Settings(limit_bytes=limit).request(graph(), machine, with_floor=False))[1]
        for limit in limits(machine, 8)
    ]
    for tighter, looser in itertools.pairwise(plans):
        assert looser.predicted_step_seconds <= tighter.predicted_step_seconds * (1 + 1e-9)
        assert tighter.predicted_peak_bytes <= looser.predicted_peak_bytes


@EITHER
def test_the_simulator_agrees(machine):
    for limit in limits(machine, 3):
        plan, found = make_plan(Settings(limit_bytes=limit).request(graph(), machine, with_floor=False))
        step = simulate(edit.apply(graph(), plan), machine)
        assert step.peak_bytes <= found.predicted_peak_bytes * 1.01
        assert step.peak_bytes >= found.predicted_peak_bytes * 0.9


@EITHER
def test_the_floor_is_near_the_working_set_and_below_it_an_error_names_it(machine):
    lowest = strategy.lowest(study(machine))
    assert lowest.limit_bytes < 0.3 * study(machine).unedited_limit_bytes
    with pytest.raises(DoesNotFit) as caught:
        make_plan(Settings(limit_bytes=lowest.limit_bytes // 2).request(graph(), machine))
    assert caught.value.smallest_limit_bytes == lowest.limit_bytes


@EITHER
def test_equal_questions_get_equal_plans(machine):
    limit = limits(machine, 2)[1]
    one, other = (make_plan(Settings(limit_bytes=limit).request(graph(), machine))[0] for _ in range(2))
    assert one == other


def rung_within(known, budget_bytes):
    """The highest rung of a step's ladder within a budget."""
    ladder = known.once(strategy._ladder)
    return ladder.rung(ladder.number(budget_bytes))


@EITHER
def test_no_plan_is_cheaper_than_the_bound_and_the_plan_is_near_it(machine):
    known = study(machine)
    rung = rung_within(known, int(known.unedited_schedule.peak_bytes * 0.5))
    unplanned = known.once(strategy._ladder).unplanned.schedule.cost_seconds
    assert rung.bound_seconds <= rung.plan.schedule.cost_seconds
    assert rung.plan.schedule.cost_seconds - unplanned <= 1.2 * (rung.bound_seconds - unplanned)


@EITHER
def test_what_the_program_counts_is_what_the_schedule_has(machine):
    known = study(machine)
    for share in (0.3, 0.6, 0.9):
        rung = rung_within(known, int(known.unedited_schedule.peak_bytes * share))
        schedule = build(known.problem, rung.plan.choices, machine)
        assert 0.95 * rung.budget_bytes <= schedule.peak_bytes <= rung.budget_bytes


def test_a_step_of_whole_tensors_is_not_planned_here():
    whole = training(140)
    assert len(whole.ops) > 500
    assert not ladder.applies(Study(Settings(limit_bytes=1).request(whole, CPU)).problem)
    assert ladder.applies(study(CPU).problem)


def test_all_later_readers_of_a_mapped_tensor_share_one_swap_in():
    """Another would free nothing, and each costs the step a node."""
    limit = limits(CPU, 2)[1]
    plan, _ = make_plan(Settings(limit_bytes=limit).request(graph(), CPU, with_floor=False))
    assert len(plan.swap_ins) == len(plan.swap_outs) > SLABS


def test_small_slabs_may_move_too():
    """A tensor is too small to move compared with whole tensors, not with all that the step makes."""
    problem = study(CPU).problem
    slabs = [b for b in problem.buffers if b.bytes == 12 * MIB // SLABS]
    assert len(slabs) > 8 * SLABS
    assert all(b.swappable for b in slabs if b.reads)


@cache
def normalised() -> StepGraph:
    """Convolution, normalisation, activation, five times, and gradients that read the last two."""
    ops, before, mib = [placeholder(mib=12)], "x", 12
    for i in range(5):
        ops.append(op(f"c{i}", before, mib=mib, flops=MIB << 9))
        ops.append(op(f"n{i}", f"c{i}", mib=mib, type="FusedBatchNormV3"))
        ops.append(op(f"r{i}", f"n{i}", mib=mib, type="LeakyRelu"))
        before = f"r{i}"
    gradient = before
    for i in reversed(range(5)):
        ops.append(op(f"gr{i}", gradient, f"n{i}", mib=mib, type="LeakyReluGrad"))
        ops.append(op(f"gn{i}", f"gr{i}", f"c{i}", mib=mib, type="FusedBatchNormGradV3"))
        ops.append(op(f"gw{i}", f"gn{i}", f"r{i - 1}" if i else "x", mib=0.01, type="Conv3DBackpropFilterV2"))
        ops.append(op(f"gc{i}", f"gn{i}", mib=mib, type="Conv3DBackpropInputV2", flops=MIB << 9))
        gradient = f"gc{i}"
    whole = step(*ops, returned=[f"gw{i}" for i in range(5)], resident_mib=8)
    return sliced(whole, lambda size: SLABS if size > 6 * MIB else 1)


def planned(machine: Machine, share: float) -> tuple[Plan, float]:
    """The plan for a share of the way from the floor up, and its seconds."""
    known = Study(Settings(limit_bytes=1 << 40).request(normalised(), machine))
    low = strategy.lowest(known).limit_bytes
    limit = int(low + share * (known.unedited_limit_bytes - low))
    plan, found = make_plan(Settings(limit_bytes=limit).request(normalised(), machine, with_floor=False))
    return plan, found.predicted_step_seconds


SLOW = replace(CPU, swap_out_bytes_per_second=2e9)
SLOW_LINK = replace(SLOW, swap_in_bytes_per_second=2e9, mapped=False)


@pytest.mark.parametrize("machine", [SLOW, SLOW_LINK], ids=["mapped", "copied"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_what_is_cheap_is_computed_again_and_not_written(machine, share, monkeypatch):
    plan, seconds = planned(machine, share)
    again = [normalised().by_name[r.op].type for r in plan.recomputes]
    assert {"FusedBatchNormV3", "LeakyRelu"} <= {*again}
    assert not machine.mapped or not {*again} & {"Conv3D", "Conv3DBackpropInputV2"}
    monkeypatch.setattr(candidates, "_all_recomputed", lambda problem, machine: {})
    monkeypatch.setattr(Polish, "__call__", lambda self, plan, budget_bytes: plan)
    written, slower = planned(machine, share)
    assert plan.swapped_out_bytes < 0.8 * written.swapped_out_bytes
    assert seconds < slower


@pytest.mark.parametrize("machine", [SLOW, SLOW_LINK], ids=["mapped", "copied"])
def test_chains_do_not_explode(machine):
    plan, _ = planned(machine, 0.1)
    times = Counter(
        r.op for r in plan.recomputes if normalised().by_name[r.op].type in ("FusedBatchNormV3", "LeakyRelu")
    )
    assert 0 < max(times.values()) <= MOST_COPIES


@pytest.mark.parametrize("machine", [SLOW, SLOW_LINK], ids=["mapped", "copied"])
def test_the_simulator_agrees_on_what_is_computed_again(machine):
    plan, _ = planned(machine, 0.3)
    found = simulate(edit.apply(normalised(), plan), machine)
    known = Study(Settings(limit_bytes=1 << 40).request(normalised(), machine))
    low = strategy.lowest(known).limit_bytes
    limit = low + 0.3 * (known.unedited_limit_bytes - low)
    assert found.peak_bytes <= limit


@pytest.mark.parametrize("machine", [SLOW, SLOW_LINK], ids=["mapped", "copied"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_what_chains_take_is_counted(machine, share, monkeypatch):
    """Room, parents, and copies that begin earlier for others: nothing is left for the schedule to add (COVER-1, COVER-5)."""
    monkeypatch.setattr(Polish, "__call__", lambda self, plan, budget_bytes: plan)
    known = Study(Settings(limit_bytes=1 << 40).request(normalised(), machine))
    budget = int(known.unedited_schedule.peak_bytes * share)
    steps = known.once(strategy._ladder)
    first = steps._covered(budget, budget, Links(known.problem, machine))
    exact = steps._covered(budget, budget, Links(known.problem, machine, first.plan.schedule.copies))
    assert any(choice.mode is Mode.RECOMPUTE for choice in exact.plan.choices.values())
    assert exact.excess_bytes <= 0


def test_slabs_of_a_tensor_are_polished_together():
    """One slab alone would not be recomputed: its neighbours still come back for the same reads (POLISH-1)."""
    problem = reduce(normalised(), SLOW_LINK)
    steps = ladder.Ladder(problem, SLOW_LINK, Account())
    low = steps.build(next(candidates.all_moved(problem)))
    budget = int(low.schedule.peak_bytes * 1.2)
    polished = Polish(problem, SLOW_LINK, Account())(low, budget)
    alone = Search(problem, SLOW_LINK, 1e9).give_back(*low, budget)
    assert polished.schedule.peak_bytes <= budget
    assert polished.schedule.cost_seconds < 0.9 * alone.schedule.cost_seconds


def test_a_plan_takes_over_what_its_pieces_allow(monkeypatch):
    """The bytes of many cheaper plans fit in a pool, but not their pieces (LADDER-5)."""
    known = study(SLOW_LINK, pool=LIMITED_GPU_POOL)
    low = strategy.lowest(known).limit_bytes
    limit = int(low + 0.1 * (known.unedited_limit_bytes - low))
    asked = Settings(limit_bytes=limit, pool=LIMITED_GPU_POOL)
    _, nearer = make_plan(asked.request(graph(), SLOW_LINK, with_floor=False))
    monkeypatch.setattr(ladder._Walk, "misplaced", lambda self, best: [])
    _, alone = make_plan(asked.request(graph(), SLOW_LINK, with_floor=False))
    assert nearer.predicted_peak_bytes <= limit
    assert nearer.predicted_step_seconds < 0.98 * alone.predicted_step_seconds


@EITHER
def test_a_candidate_that_counts_on_another_buffer_is_priced_right(machine):
    """The program and the schedule agree on what a plan costs (COVER-5)."""
    known = Study(Settings(limit_bytes=1 << 40).request(normalised(), machine))
    unplanned = known.once(strategy._ladder).unplanned.schedule.cost_seconds
    for share in (0.3, 0.5, 0.8):
        rung = rung_within(known, int(known.unedited_schedule.peak_bytes * share))
        dearer = rung.plan.schedule.cost_seconds - unplanned
        assert rung.bound_seconds - unplanned <= dearer + 1e-9
        assert dearer <= 1.3 * (rung.bound_seconds - unplanned)


def test_a_tensor_that_several_passes_read_may_come_back_once_for_each():
    """Each pass over the slabs reads it within few anchors. Brought back for each read, it would be copied three times as often."""
    reads = {first + more for first in (12, 30, 52, 78) for more in (0, 2, 4)}
    chain = [op(f"f{i}", f"f{i - 1}" if i else "x", *(["a"] if i in reads else []), mib=4) for i in range(90)]
    problem = reduce(step(placeholder(), op("a", "x", mib=4), *chain), GPU)
    b = next(i for i, buffer in enumerate(problem.buffers) if buffer.root == "a:0")
    found = candidates.candidates(problem, GPU, Links(problem, GPU))
    assert 4 in {len(one.spans) - 1 for one in found if one.buffer == b}
