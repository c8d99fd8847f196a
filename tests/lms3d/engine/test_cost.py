"""Costs of single ops: measured seconds go before estimates, and are kept."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tensorflow as tf

from lms3d.common import disk
from lms3d.device import circumstances, workspace
from lms3d.engine import tuning
from lms3d.engine.cost import Machine, OpCost, op_seconds, step_seconds
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import functions, op_costs, programs
from lms3d.engine.tensorflow.capture import capture, signature
from lms3d.engine.tensorflow.probing import Cost
from tests.lms3d.engine.toy_graphs import training
from tests.lms3d.engine.traced import IMAGE, convolution_step, of_type

# By this roofline even small ops are worth a measurement.
SLOW = Machine(flops_per_second=1e9, bytes_per_second=1e8)


@pytest.fixture(scope="module")
def step():
    return functions.trace(convolution_step, IMAGE)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path))


@pytest.fixture
def probed(monkeypatch):
    """The ops that are probed; nothing really runs."""
    seen: list[str] = []

    def fake(op, parts=1, times=1, **_):
        seen.append(op.type)
        return Cost(0.25, 0.5, 1000, parts)

    monkeypatch.setattr(op_costs.probing, "probe", fake)
    monkeypatch.setattr(op_costs, "_paces", {})
    return seen


def test_a_measured_op_does_not_ask_the_roofline(step):
    graph = capture(step)
    conv = next(op for op in graph.ops if op.type == "Conv3D")
    known = replace(SLOW, op_table={conv.signature: OpCost(7.0, 0.5)})
    assert op_seconds(graph, conv, known) == 7.0
    assert op_seconds(graph, replace(conv, signature="another"), known) == op_seconds(graph, conv, SLOW)


def test_an_op_that_leaves_cores_idle_counts_less_where_no_order_holds_others_back(step):
    graph = capture(step)
    conv = next(op for op in graph.ops if op.type == "Conv3D")
    rest = step_seconds(graph, SLOW) - op_seconds(graph, conv, SLOW)
    known = replace(SLOW, op_table={conv.signature: OpCost(7.0, 0.5)})
    assert step_seconds(graph, known) == pytest.approx(rest + 3.5)
    assert step_seconds(graph, known, ordered={conv.name}) == pytest.approx(rest + 7.0)


def test_a_plan_is_predicted_with_the_measured_seconds(step):
    graph = capture(step)
    table = {op.signature: OpCost(1.0, 1.0) for op in graph.ops if op.signature}
    _, report = make_plan(Settings(limit_bytes=1 << 40).request(graph, replace(SLOW, op_table=table), with_floor=False))
    assert report.unedited_step_seconds > sum(bool(op.signature) for op in graph.ops)


def test_a_transfer_that_needs_the_compute_device_costs_seconds():
    """The same plan, once with transfers on the processor that computes."""
    graph = training(8, mib=4)
    machine = replace(SLOW, flops_per_second=1e6, swap_out_bytes_per_second=1e9, swap_in_bytes_per_second=1e9)
    _, free = make_plan(Settings(limit_bytes=1 << 40).request(graph, machine))
    limit = Settings(limit_bytes=(free.floor_bytes + free.unedited_limit_bytes) // 2)
    plan, report = make_plan(limit.request(graph, machine, with_floor=False))
    _, shared = make_plan(limit.request(graph, replace(machine, swap_share=0.5), with_floor=False))
    moved = plan.swapped_out_bytes + plan.swapped_in_bytes
    assert moved
    assert shared.predicted_step_seconds - report.predicted_step_seconds == pytest.approx(0.5e-9 * moved)


def test_each_transfer_has_a_price_whatever_its_bytes():
    """The same plan, once on a device that has to launch copies."""
    graph = training(8, mib=4)
    machine = replace(SLOW, flops_per_second=1e6, swap_out_bytes_per_second=1e9, swap_in_bytes_per_second=1e9)
    _, free = make_plan(Settings(limit_bytes=1 << 40).request(graph, machine))
    limit = Settings(limit_bytes=(free.floor_bytes + free.unedited_limit_bytes) // 2)
    plan, report = make_plan(limit.request(graph, machine, with_floor=False))
    _, launched = make_plan(limit.request(graph, replace(machine, node_seconds=1e-6), with_floor=False))
    copies = len(plan.swap_outs) + len(plan.swap_ins)
    assert copies
    assert launched.predicted_step_seconds - report.predicted_step_seconds == pytest.approx(1e-6 * copies)


def test_costs_are_kept_for_each_number_of_cores(monkeypatch):
    """A bound process shares the folder of processes with all cores. A GPU computes whoever starts its kernels."""
    processor, card, another = op_costs.conditions("CPU:0"), op_costs.conditions("GPU:0"), op_costs.speeds.cores() + 1
    monkeypatch.setattr(op_costs.speeds, "cores", lambda: another)
    assert op_costs.conditions("CPU:0") != processor
    assert op_costs.conditions("GPU:0") == card


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(tf.config.experimental, "tensor_float_32_execution_enabled", lambda: False),
        lambda patch: patch.setattr(op_costs.speeds.reading, "is_deterministic", lambda: True),
        lambda patch: patch.setattr(op_costs.speeds, "nvidia_driver", lambda: "580.159.04"),
    ],
    ids=["TF32", "determinism", "driver"],
)
def test_costs_are_kept_for_all_that_changes_the_kernels_of_a_gpu(monkeypatch, change):
    processor, card = op_costs.conditions("CPU:0"), op_costs.conditions("GPU:0")
    change(monkeypatch)
    assert op_costs.conditions("GPU:0") != card
    assert op_costs.conditions("CPU:0") == processor


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2"),
        lambda patch: patch.setenv("DNNL_MAX_CPU_ISA", "AVX2"),
        lambda patch: patch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16"),
        lambda patch: patch.setenv("TF_ENABLE_ONEDNN_OPTS", "0"),
        lambda patch: patch.setattr(circumstances, "of_processor", lambda: ("AuthenticAMD 25 1", "AVX2")),
    ],
    ids=["instructions", "their older name", "rounding", "no oneDNN", "another processor of the same name"],
)
def test_costs_are_kept_for_all_that_changes_the_kernels_of_a_processor(monkeypatch, change):
    """And its workspaces: an op may take more of them if the processor lacks instructions for its type."""
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE"):
        monkeypatch.delenv(name, raising=False)
    before = [of(device) for of in (op_costs.conditions, programs._conditions) for device in ("CPU:0", "GPU:0")]
    change(monkeypatch)
    after = [of(device) for of in (op_costs.conditions, programs._conditions) for device in ("CPU:0", "GPU:0")]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("step", "device", "worth"),
    [(0.1, "GPU:0", 3e-5), (10.0, "GPU:0", 3e-4), (1e-3, "GPU:0", 1e-5), (0.1, "CPU:0", 3e-4), (1e-3, "CPU:0", 3e-4)],
)
def test_on_a_gpu_what_matters_is_a_share_of_the_step(step, device, worth):
    assert op_costs._worth_seconds(step, device) == pytest.approx(worth)


def test_equal_work_has_one_signature_and_other_work_another():
    def twice(x):
        a, b = tf.tanh(x), tf.tanh(x + 1)
        return a, b, tf.tanh(x[:, :2]), tf.reduce_sum(a, 0), tf.reduce_sum(b, 1)

    graph = functions.trace(twice, tf.TensorSpec((4, 4))).graph
    first, second, smaller = (signature(op) for op in graph.get_operations() if op.type == "Tanh")
    over_rows, over_columns = (signature(op) for op in graph.get_operations() if op.type == "Sum")
    assert first == second
    assert len({first, smaller, over_rows, over_columns, ""}) == 5


def test_on_a_gpu_a_convolution_is_another_kind_within_another_workspace(monkeypatch):
    """Its algorithm differs; an addition does the same work."""

    @tf.function
    def step(image, kernel):
        return tf.nn.conv2d(image, kernel, 1, "SAME") + 1.0

    graph = step.get_concrete_function(tf.TensorSpec((1, 8, 8, 2)), tf.TensorSpec((3, 3, 2, 2)))
    convolution, addition = (of_type(graph, kind) for kind in ("Conv2D", "AddV2"))
    before = {
        (op.type, device): signature(op, device) for op in (convolution, addition) for device in ("CPU:0", "GPU:0")
    }
    monkeypatch.setenv("TF_CUDNN_WORKSPACE_LIMIT_IN_MB", "256")
    changed = [key for key, known in before.items() if signature(of_type(graph, key[0]), key[1]) != known]
    assert changed == [("Conv2D", "GPU:0")]


def test_what_cannot_run_alone_has_no_signature(step):
    without = {op.type for op in capture(step).ops if not op.signature}
    # Random, stateful, without work, and the gradient that runs another kernel without its forward op.
    assert {"RandomUniform", "StatelessRandomNormalV2", "Placeholder", "Const", "MaxPool3DGrad"} <= without
    assert signature(of_type(step, "MaxPool3DGrad"), "GPU:0")  # there the forward op hides nothing from it
    unknown = functions.trace(tf.tanh, tf.TensorSpec((None, 4)))
    assert signature(of_type(unknown, "Tanh")) == ""


def test_only_what_can_run_alone_is_probed(step, probed):
    graph, machine = op_costs.with_ops(capture(step), SLOW, step)
    assert {"Conv3D", "Conv3DBackpropInputV2"} <= set(probed)
    assert not {"RandomUniform", "StatelessRandomNormalV2", "MaxPool3DGrad"} & set(probed)
    conv = next(op for op in graph.ops if op.type == "Conv3D")
    assert op_seconds(graph, conv, machine) == 0.25
    assert conv.workspace_bytes == 1000


def test_nothing_is_probed_where_nothing_takes_long(step, probed):
    op_costs.with_ops(capture(step), Machine(flops_per_second=1e15, bytes_per_second=1e15), step)
    assert probed == []


def test_each_kind_of_op_is_probed_once_and_kept(step, probed):
    _, first = op_costs.with_ops(capture(step), SLOW, step)
    count = len(probed)
    assert count
    _, second = op_costs.with_ops(capture(step), SLOW, functions.trace(convolution_step, IMAGE))
    assert len(probed) == count
    assert dict(second.op_table) == dict(first.op_table)


def test_who_has_more_memory_measures_again_what_was_cut(step, probed):
    def free(mib):
        op_costs.with_ops(capture(step), SLOW, step, free_bytes=mib << 20)
        return len(probed)

    little, more = free(4), free(1 << 10)
    assert little < more < 2 * little  # small ops were whole
    assert free(4) == free(1 << 10) == more


def test_what_can_only_be_measured_in_parts_keeps_its_cost(step, probed, monkeypatch):
    _, first = op_costs.with_ops(capture(step), SLOW, step, free_bytes=4 << 20)
    monkeypatch.setattr(op_costs.probing, "probe", lambda op, parts=1, *_, **__: probed.append(op.type))
    _, second = op_costs.with_ops(capture(step), SLOW, step)
    tried = len(probed)
    assert dict(second.op_table) == dict(first.op_table)
    op_costs.with_ops(capture(step), SLOW, step)
    assert len(probed) == tried


def test_what_another_run_measured_stays(step, probed):
    op_costs.with_ops(capture(step), SLOW, step)
    other = functions.trace(convolution_step, tf.TensorSpec((1, 8, 8, 8, 4)))
    _, machine = op_costs.with_ops(capture(other), SLOW, other)
    assert {op.signature for op in capture(step).ops if op.type == "Conv3D"} <= set(machine.op_table)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 3}', '{"x": {"y": ["a", 1, 2]}}', '{"x": {"y": [1]}}', "\x00"])
def test_a_cache_that_cannot_be_read_counts_as_empty(step, probed, text):
    store = disk.cache_directory() / "ops.json"
    store.write_text(text)
    _, machine = op_costs.with_ops(capture(step), SLOW, step)
    assert probed
    assert machine.op_table
    assert json.loads(store.read_text())


def test_a_cache_that_cannot_be_written_does_no_harm(step, probed, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "file" / "folder"))
    assert op_costs.with_ops(capture(step), SLOW, step)[1].op_table


def test_the_ops_of_a_gpu_are_measured_for_it(step):
    """The processor takes its part."""
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(True)
    try:
        _, machine = op_costs.with_ops(capture(step), SLOW, step, device="GPU:0", free_bytes=1 << 30)
    finally:
        tf.config.set_soft_device_placement(before)
    conv = next(op for op in capture(step).ops if op.type == "Conv3D")
    assert machine.op_table[conv.signature].share == 1.0
    assert all(cost.seconds > 0 for cost in machine.op_table.values())
    assert list(json.loads((disk.cache_directory() / "ops.json").read_text())) == [op_costs.conditions("GPU:0")]


def test_parts_that_say_nothing_of_the_whole_are_supposed_and_not_kept(step, probed, monkeypatch):
    """Four parts that have a workspace of 512 KiB each, where cuDNN would not take 2 MiB for the whole."""

    def fake(op, parts=1, times=1, **_):
        probed.append(op.type)
        return Cost(0.25, 1.0, 2 << 20, parts)

    monkeypatch.setattr(op_costs.probing, "probe", fake)
    monkeypatch.setattr(op_costs, "_supposed", {})
    monkeypatch.setenv(workspace.VARIABLE, "1")
    whole = capture(step, compute_device="GPU:0")

    def convolution(free_bytes: int) -> tuple[int, float]:
        graph, machine = op_costs.with_ops(whole, SLOW, step, device="GPU:0", free_bytes=free_bytes)
        op = next(op for op in graph.ops if op.type == "Conv3D")
        return op.workspace_bytes, op_seconds(graph, op, machine)

    estimated = op_seconds(whole, next(op for op in whole.ops if op.type == "Conv3D"), SLOW)
    assert convolution(1 << 20) == (1 << 20, pytest.approx(estimated))
    tried = probed.count("Conv3D")
    assert convolution(1 << 20) == (1 << 20, pytest.approx(estimated))
    assert probed.count("Conv3D") == tried, "this process does not try again"
    monkeypatch.setattr(op_costs, "_supposed", {})
    convolution(1 << 20)
    assert probed.count("Conv3D") == 2 * tried, "the next one does"
    assert convolution(1 << 40) == (2 << 20, 0.25)
    monkeypatch.setattr(op_costs, "_supposed", {})
    assert convolution(1 << 20) == (2 << 20, 0.25)


def test_ops_are_measured_alone_whatever_their_scale_in_the_step(step, probed):
    """As many kinds of them, in as many parts; and the scale stays."""
    _, plain = op_costs.with_ops(capture(step), SLOW, step)
    count = len(probed)
    _, scaled = op_costs.with_ops(capture(step), replace(SLOW, ops_scale=1000.0), step)
    assert len(probed) == count
    assert dict(scaled.op_table) == dict(plain.op_table)
    assert scaled.ops_scale == 1000.0
    disk.cache_directory().joinpath("ops.json").unlink()
    _, again = op_costs.with_ops(capture(step), replace(SLOW, ops_scale=1e-3), step)
    assert dict(again.op_table) == dict(plain.op_table)


@pytest.fixture
def another_process(probed, monkeypatch):
    """Called with seconds: what follows is of a process that starts long after, and whose ops take so long."""

    def begin(seconds):
        def fake(op, parts=1, times=1, **_):
            probed.append(op.type)
            return Cost(seconds, 0.5, 1000, parts)

        op_costs._paces.clear()
        monkeypatch.setattr(op_costs.probing, "probe", fake)
        monkeypatch.setattr(tuning, "PACE_LASTS_SECONDS", 0.0)
        monkeypatch.setattr(tuning, "PACED_OPS", 3)  # of the few that this step has

    return begin


@pytest.mark.parametrize(("today", "pace"), [(0.25, 1.0), (0.27, 1.0), (0.28, 1.1), (0.5, 1.1**7), (0.125, 1.1**-7)])
def test_the_machine_of_today(step, probed, another_process, today, pace):
    """Another process measures a few ops again; 8 % are no difference."""
    op_costs.with_ops(capture(step), SLOW, step)
    count = len(probed)
    another_process(today)
    _, machine = op_costs.with_ops(capture(step), SLOW, step)
    assert len(probed) == count + tuning.PACED_OPS
    assert all(cost.seconds == pytest.approx(0.25 * pace) for cost in machine.op_table.values())
    _, again = op_costs.with_ops(capture(step), SLOW, step)  # once per process
    assert len(probed) == count + tuning.PACED_OPS
    assert dict(again.op_table) == dict(machine.op_table)


def test_a_pace_stays_while_the_next_is_near_it(step, probed, another_process):
    for seconds, pace in ((0.25, 1.0), (0.5, 1.1**7), (0.45, 1.1**7), (0.3, 1.1**2)):
        another_process(seconds)
        _, machine = op_costs.with_ops(capture(step), SLOW, step)
        assert all(cost.seconds == pytest.approx(0.25 * pace) for cost in machine.op_table.values())


def test_processes_that_start_together_have_one_pace(step, probed, another_process, monkeypatch):
    op_costs.with_ops(capture(step), SLOW, step)
    another_process(0.5)
    _, first = op_costs.with_ops(capture(step), SLOW, step)
    count = len(probed)
    another_process(1.0)
    monkeypatch.setattr(tuning, "PACE_LASTS_SECONDS", 600.0)
    _, second = op_costs.with_ops(capture(step), SLOW, step)
    assert len(probed) == count
    assert dict(first.op_table) == dict(second.op_table)


def test_new_kinds_count_as_of_the_day_of_the_others(step, probed, another_process):
    _, first = op_costs.with_ops(capture(step), SLOW, step)
    another_process(0.5)
    spec = tf.TensorSpec((1, 28, 28, 28, 4))
    both = functions.trace(lambda x, y: (convolution_step(x), convolution_step(y)), IMAGE, spec)
    _, today = op_costs.with_ops(capture(both), SLOW, both)
    new = today.op_table.keys() - first.op_table.keys()
    assert new
    assert all(cost.seconds == pytest.approx(0.5) for name, cost in today.op_table.items() if name in new)
    another_process(0.25)
    _, then = op_costs.with_ops(capture(both), SLOW, both)
    assert all(then.op_table[name].seconds == pytest.approx(0.5 / 1.1**7) for name in new)


def test_a_short_step_is_not_worth_it_and_says_nothing_of_a_long_one(step, probed, another_process, monkeypatch):
    op_costs.with_ops(capture(step), SLOW, step)
    count = len(probed)
    another_process(0.5)
    with monkeypatch.context() as short:
        short.setitem(tuning.LONG_STEP_SECONDS, "CPU", 1e9)
        op_costs.with_ops(capture(step), SLOW, step)
        assert len(probed) == count
    op_costs.with_ops(capture(step), SLOW, step)
    assert len(probed) == count + tuning.PACED_OPS


@pytest.mark.parametrize("text", ["{", "[]", '{"x": 1}', "KEY:nan", "KEY:-1"])
def test_a_pace_that_no_machine_has_is_found_anew(step, probed, another_process, text):
    op_costs.with_ops(capture(step), SLOW, step)
    another_process(0.5)
    store = disk.cache_directory() / "pace.json"
    kind, _, value = text.partition(":")
    (key,) = json.loads(store.read_text())
    store.write_text(json.dumps({key: [float(value), 1.0]}) if kind == "KEY" else text)
    _, machine = op_costs.with_ops(capture(step), SLOW, step)
    assert all(cost.seconds == pytest.approx(0.25 * 1.1**7) for cost in machine.op_table.values())


def test_no_time_no_probes(step, probed):
    op_costs.with_ops(capture(step), SLOW, step, budget_seconds=-1)
    assert probed == []


def test_no_memory_no_probes(step, probed):
    op_costs.with_ops(capture(step), SLOW, step, free_bytes=0)
    assert probed == []
