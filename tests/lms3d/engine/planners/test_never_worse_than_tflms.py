"""For small steps the hybrid planner fits wherever TFLMS's auto-tune makes a plan, and swaps no more bytes there.

Both plans are put into the step and run by the same simulator, whatever their planners think of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.engine import edit
from lms3d.engine.cost import Machine
from lms3d.engine.ir import METADATA_TYPES, StepGraph
from lms3d.engine.plan import Plan
from lms3d.engine.planners.hybrid import local_search, strategy, tuning
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model import emit
from lms3d.engine.step_model.pool import GPU_POOL
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.simulate import simulate
from lms3d.errors import DoesNotFit
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step, training
from tests.stress.steps import any_steps

FAST = Machine(flops_per_second=1e10)
SLOW = replace(FAST, swap_out_bytes_per_second=1e7, swap_in_bytes_per_second=1e7)
MAPPED = replace(FAST, mapped=True)
SHARES = (0.5, 0.65, 0.8, 0.9, 0.97, 1.04)  # of the peak without LMS; from 1 / 0.94 on TFLMS does nothing


def planned(method: str, graph: StepGraph, limit_bytes: int, machine: Machine) -> Plan | None:
    """The plan, if there is one and the simulator agrees that it keeps the limit."""
    try:
        plan, _ = make_plan(Settings(limit_bytes=limit_bytes, planner=method).request(graph, machine, with_floor=False))
    except DoesNotFit:
        return None
    return plan if simulate(edit.apply(graph, plan), machine).peak_bytes <= limit_bytes else None


def compare(graph: StepGraph, share: float, machine: Machine) -> tuple[Plan, Plan] | None:
    """Our plan and TFLMS's at a limit; None if TFLMS has none. Fails if ours is worse."""
    limit = int(simulate(graph, machine).peak_bytes * share)
    theirs = planned("tflms", graph, limit, machine)
    if theirs is None or theirs.empty:
        return None
    ours = planned("hybrid", graph, limit, machine)
    assert ours is not None
    assert ours.swapped_out_bytes <= theirs.swapped_out_bytes
    return ours, theirs


def serial(graph: StepGraph) -> StepGraph:
    """The step without what runs beside all else: no order of large ops says when that takes its memory."""
    return graph.with_ops(
        tuple(
            replace(
                op,
                in_loop=False,
                on_device=True,
                control_inputs=(),
                type="Tanh" if op.type in METADATA_TYPES else op.type,  # with an output of some MiB
            )
            for op in graph.ops
        )
    )


@given(any_steps().map(serial), st.sampled_from([FAST, SLOW, MAPPED]))
@settings(max_examples=80, deadline=None)
def test_any_step(graph, machine):
    for share in SHARES:
        compare(graph, share, machine)


@pytest.mark.parametrize("bytes_per_second", [1e7, 1e9, 1e12])
def test_a_training_step(bytes_per_second):
    machine = replace(FAST, swap_out_bytes_per_second=bytes_per_second, swap_in_bytes_per_second=bytes_per_second)
    graph = training(6, mib=4, resident_mib=3)
    assert all(compare(graph, share, machine) for share in SHARES)


def test_what_is_cheaper_to_swap_gives_way_to_what_is_smaller():
    """`b` hides behind the slow ops on both sides of its gap; `a` is half as large, and `r` has to wait for it."""
    quick = [op(f"t{i}", f"t{i - 1}" if i else "a", mib=0.25, flops=1) for i in range(8)]
    slow = [op(f"v{i}", f"v{i - 1}" if i else "r", mib=0.25, flops=20) for i in range(4)]
    graph = step(
        placeholder(mib=0.1),
        op("a", "x", mib=4, stateful=True),
        *quick,
        op("b", "t7", mib=8, stateful=True),
        op("u", "b", mib=0.25, flops=20),
        op("peak", "u", mib=16, flops=1),
        op("s", "peak", mib=0.25),
        op("s2", "s", mib=0.25),
        op("r", "s2", "a", mib=0.25),
        *slow,
        op("z", "v3", "b", mib=0.25),
        returned=["z"],
    )
    problem = reduce(graph, SECONDS)
    assert emit.emit(local_search.solve(problem, 27 * MIB, SECONDS)).swapped_out_bytes == 8 * MIB
    pair = compare(graph, 27 * MIB / simulate(graph, SECONDS).peak_bytes, SECONDS)
    assert [plan.swapped_out_bytes for plan in pair] == [4 * MIB, 4 * MIB]


def test_where_only_tflms_fits_its_plan_is_taken():
    """`mask` ends a branch, so our order makes it first; it is returned, and stays."""
    chain = [op(f"f{i}", f"f{i - 1}" if i else "a", mib=2 if i < 4 else 0.25, flops=8) for i in range(8)]
    graph = step(
        placeholder(mib=0.1),
        op("a", "x", mib=4, flops=8, stateful=True),
        *chain,
        op("z", "f7", "a", mib=0.1, flops=8),
        op("mask", "x", mib=4, type="Tanh"),
        returned=["z", "mask"],
    )
    ours, theirs = compare(graph, 6.8 * MIB / simulate(graph, SECONDS).peak_bytes, SECONDS)
    assert ours == theirs
    assert ours.planner == "tflms"
    with pytest.raises(DoesNotFit):  # in a pool it is no rival
        make_plan(Settings(limit_bytes=int(6.8 * MIB), pool=GPU_POOL).request(graph, SECONDS))


def test_where_the_simulator_doubts_our_plan_that_of_tflms_is_taken(monkeypatch):
    """With slow links swap-ins may begin earlier or later than our schedule expects."""
    graph = training(6, mib=4, resident_mib=3)
    limit = int(simulate(graph, FAST).peak_bytes * 0.8)
    assert planned("hybrid", graph, limit, FAST).planner == "hybrid"
    monkeypatch.setattr(strategy, "_simulated_peak", lambda study, plan: limit + 1)
    assert planned("hybrid", graph, limit, FAST) == planned("tflms", graph, limit, FAST)


def test_that_tflms_sees_nothing_to_do_is_not_believed_but_costs_no_swap():
    """Its 6 % are for the pool; an executor that runs ops side by side takes more. Ours holds the order."""
    graph = training(6, mib=4, resident_mib=3)
    limit = int(simulate(graph, FAST).peak_bytes * 1.07)
    assert planned("tflms", graph, limit, FAST).empty
    _, report = make_plan(Settings(limit_bytes=limit).request(graph, FAST))
    assert report.unedited_limit_bytes > limit
    ours = planned("hybrid", graph, limit, FAST)
    assert ours.control_edges
    assert (ours.swap_outs, ours.recomputes) == ((), ())


@pytest.mark.parametrize("returned", [["z"], ["z", "mask"]])
def test_a_step_that_fits_in_its_traced_order_is_only_held_to_it(returned):
    """`mask` ends a branch: made first, as our order has it, it would be there all the time."""
    chain = [op(f"f{i}", f"f{i - 1}" if i else "x", mib=40, flops=8) for i in range(6)]
    mask = op("mask", "x", mib=40, type="Tanh", stateful=True)
    graph = step(placeholder(mib=0.1), *chain, mask, op("z", "f5", "mask", mib=40, type="AddV2"), returned=returned)
    limit = int(simulate(graph, SECONDS).peak_bytes * 1.07)
    assert planned("tflms", graph, limit, SECONDS).empty
    assert planned("hybrid", graph, limit, SECONDS).swapped_out_bytes == 0


def unfused(depth: int, chain: int) -> StepGraph:
    """As `training`, with a chain of cheap ops behind each convolution whose gradients read all of them."""
    ops, before = [placeholder(mib=4)], "x"
    for i in range(depth):
        ops.append(op(f"c{i}", before, mib=4, flops=8 * MIB))
        before = f"c{i}"
        for k in range(chain):
            ops.append(op(f"e{i}-{k}", before, mib=4, type="Mul"))
            before = f"e{i}-{k}"
    gradient = before
    for i in reversed(range(depth)):
        for k in reversed(range(chain)):
            source = f"e{i}-{k - 1}" if k else f"c{i}"
            ops.append(op(f"ge{i}-{k}", gradient, source, mib=4, type="Mul"))
            gradient = f"ge{i}-{k}"
        source = f"e{i - 1}-{chain - 1}" if i else "x"
        ops.append(op(f"gw{i}", gradient, source, mib=0.01, type="Conv3DBackpropFilterV2", flops=8 * MIB))
        ops.append(op(f"gc{i}", gradient, mib=4, type="Conv3DBackpropInputV2", flops=8 * MIB))
        gradient = f"gc{i}"
    return step(*ops, returned=[f"gw{i}" for i in range(depth)], resident_mib=3)


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_over_a_slow_link_a_large_step_is_faster_than_tflms_even_with_little_effort(share):
    """TFLMS moves tensors that are far cheaper computed again, in chains of which no single op frees anything."""
    graph = unfused(40, 5)
    machine = replace(FAST, swap_out_bytes_per_second=2e8, swap_in_bytes_per_second=2e8, bytes_per_second=1e11)
    assert len(graph.ops) > tuning.COMPARED_OPS
    asked = Settings(limit_bytes=int(simulate(graph, machine).peak_bytes * share), pool=GPU_POOL)
    seconds = {}
    for method in ("hybrid", "tflms"):
        request = asked.request(graph, machine, effort_seconds=0.75, with_floor=False).under(planner=method)
        plan, report = make_plan(request)
        assert report.predicted_peak_bytes <= asked.limit_bytes
        seconds[method] = simulate(edit.apply(graph, plan), machine).seconds / simulate(graph, machine).seconds
    assert seconds["hybrid"] <= 2
    assert seconds["tflms"] >= 1.5 * seconds["hybrid"]
