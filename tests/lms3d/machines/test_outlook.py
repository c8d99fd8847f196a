"""The speeds of a machine, and the seconds of a step on it: bounds, gaps, latencies, and models that share a link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lms3d.engine import plan_cache
from lms3d.engine.cost import Machine, op_seconds
from lms3d.engine.plan import Plan
from lms3d.engine.planners.tflms import Parameters
from lms3d.engine.planners.tflms.rules import build
from lms3d.engine.request import Settings
from lms3d.engine.step_model.pool import GPU_POOL
from lms3d.machines import machine_files, outlook
from lms3d.machines.model import Number
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step, training

AC922 = machine_files.load("ac922")
GRAPH = training(6, mib=8)
PLAN = build(GRAPH, Parameters(swapout_threshold=2, swapin_ahead=1, swapin_groupby=0, sync_mode=0))
SLOW = Machine(flops_per_second=1e9, bytes_per_second=1e9, swap_out_bytes_per_second=1e8, swap_in_bytes_per_second=2e8)


def test_each_kind_of_convolution_has_its_rate():
    rates = {"forward": 2.0, "input_gradient": 4.0, "filter_gradient": 8.0, "other": 16.0}
    numbers = {f"{kind}_flops_per_second": Number(value=rate, source="test") for kind, rate in rates.items()}
    launch = Number(value=0.5, source="test")
    machine = replace(AC922, **numbers, op_seconds=launch).speeds()
    seconds = {
        kind: op_seconds(step(placeholder(), known), known, machine)
        for kind in ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2", "MatMul", "Conv2DBackpropFilter")
        for known in [op("a", "x", type=kind, flops=32)]
    }
    assert seconds == {
        "Conv3D": 16.5, "Conv3DBackpropInputV2": 8.5, "Conv3DBackpropFilterV2": 4.5, "MatMul": 2.5,
        "Conv2DBackpropFilter": 4.5,
    }  # fmt: skip


def test_links_latency_and_host_tier():
    speeds = AC922.speeds()
    assert (speeds.swap_out_bytes_per_second, speeds.swap_in_bytes_per_second) == (68e9, 68e9)
    assert (speeds.node_seconds, speeds.mapped, speeds.op_table) == (1e-5, False, {})


def test_a_plan_for_other_rates_is_another_plan():
    settings = Settings(limit_bytes=1 << 40, tier="host", pool=GPU_POOL)
    speeds = AC922.speeds()
    assert speeds.rates
    other = replace(speeds, rates=tuple((kind, 2 * rate) for kind, rate in speeds.rates))
    keys = {plan_cache.key(settings.request(GRAPH, machine)) for machine in (speeds, other, AC922.speeds())}
    assert len(keys) == 2


def test_without_a_plan_a_step_is_its_ops_and_the_gap():
    machine = AC922.speeds()
    alone = outlook.of(GRAPH, Plan(), machine, gap_seconds=0.5)
    assert alone.step_seconds == pytest.approx(0.5 + sum(op_seconds(GRAPH, one, machine) for one in GRAPH.ops))
    assert (alone.out_bytes, alone.in_bytes, alone.out_bytes_per_second) == (0, 0, 0.0)
    assert alone.working_seconds < alone.compute_seconds  # launches are no work of the device
    assert alone.busy_share == alone.working_seconds / alone.step_seconds


def test_the_gap_is_the_batch_at_the_rate_of_the_host():
    assert AC922.gap_seconds(1 << 30) == 0
    slow = replace(AC922, batch_bytes_per_second=Number(value=1e9, source="test"))
    assert slow.gap_seconds(500_000_000) == 0.5


@pytest.mark.parametrize("machine", [SLOW, replace(SLOW, swap_out_bytes_per_second=1e10), AC922.speeds()])
def test_a_step_lies_between_all_hidden_and_nothing_hidden(machine):
    made = outlook.of(GRAPH, PLAN, machine, gap_seconds=0.25)
    least, most = made.bounds
    assert least <= made.step_seconds <= most * (1 + 1e-9)
    assert least >= made.compute_seconds + 0.25
    assert made.out_bytes == PLAN.swapped_out_bytes > 0
    assert made.out_bytes_per_second == pytest.approx(machine.swap_out_bytes_per_second)
    assert made.in_bytes_per_second == pytest.approx(machine.swap_in_bytes_per_second)


def test_nothing_hides_in_a_chain_of_one_swap():
    graph = step(
        placeholder(), op("a", "x", flops=1), op("f", "a", flops=1), op("z", "f", "a", flops=1), returned=["z"]
    )
    plan = build(graph, Parameters(swapout_threshold=1, swapin_ahead=1, swapin_groupby=0, sync_mode=3))
    made = outlook.of(graph, plan, SECONDS)
    assert made.step_seconds == pytest.approx(made.bounds[1]) == pytest.approx(5)


def test_each_copy_costs_its_latency():
    quick = outlook.of(GRAPH, PLAN, SLOW)
    late = outlook.of(GRAPH, PLAN, replace(SLOW, node_seconds=1.0))
    copies = len(PLAN.swap_outs) + len(PLAN.swap_ins)
    assert late.step_seconds == pytest.approx(quick.step_seconds + copies)


@pytest.mark.parametrize(
    ("busy", "sharers", "share"), [(0, 4, 1.0), (1, 4, 0.25), (0.5, 2, 0.75), (2, 2, 0.5), (0.5, 1, 1.0)]
)
def test_the_share_of_a_link(busy, sharers, share):
    assert outlook.share_of_rate(busy, sharers) == pytest.approx(share)


def test_models_on_one_link_slow_each_other_down_but_less_than_by_their_number():
    alone, pair, four = (outlook.of(GRAPH, PLAN, SLOW, sharers=n) for n in (1, 2, 4))
    assert alone.step_seconds < pair.step_seconds < four.step_seconds < 4 * alone.step_seconds
    assert pair.step_seconds < 2 * alone.step_seconds
    assert SLOW.swap_out_bytes_per_second / 2 < pair.out_bytes_per_second < SLOW.swap_out_bytes_per_second
    assert outlook.of(GRAPH, Plan(), SLOW, sharers=4).step_seconds == outlook.of(GRAPH, Plan(), SLOW).step_seconds


def test_the_rates_of_another_gpu_leave_its_links_alone():
    fast = AC922.faster(2.0, "test").speeds()
    slow = AC922.speeds()
    assert fast.bytes_per_second == 2 * slow.bytes_per_second
    assert dict(fast.rates)["Conv3D"] == 2 * dict(slow.rates)["Conv3D"]
    assert (fast.op_seconds, fast.swap_in_bytes_per_second) == (slow.op_seconds, slow.swap_in_bytes_per_second)


def test_the_bytes_of_a_batch():
    assert outlook.batch_bytes(replace(GRAPH, batches=(4 * MIB, MIB))) == 5 * MIB
