"""Real rewriting of small functions: which nodes there are, and that no bit changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tensorflow as tf

from lms3d.engine.plan import Plan, Recompute, SwapIn, SwapOut
from lms3d.engine.planners import tflms
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tiers import base
from lms3d.engine.tiers.host import HostTier
from tests.lms3d.engine.tiers.slow import slow_tier
from tests.lms3d.engine.traced import PARAMETERS, SPEC, batch, by_tflms, chain, fork, rewrite, same_bits, splits, u_net


def inserted(function) -> list[str]:
    return sorted(op.name for op in function.graph.get_operations() if op.name.startswith("lms/"))


def test_host_tier_is_exactly_one_identity_on_each_side():
    made = by_tflms(chain, HostTier())
    assert inserted(made.function) == ["lms/swap_in/a/0", "lms/swap_out/a"]
    out, back, dest = made.op("lms/swap_out/a"), made.op("lms/swap_in/a/0"), made.op("z")
    assert [out.type, back.type] == ["Identity", "Identity"]
    assert [t.op.name for t in out.inputs] == ["a"]
    assert [t.op.name for t in back.inputs] == ["lms/swap_out/a"]
    assert [t.op.name for t in dest.inputs] == ["f4", "lms/swap_in/a/0"]
    assert [t.op.name for t in made.op("f1").inputs] == ["a"]
    assert [op.name for op in back.control_inputs] == ["f3"]
    assert not out.control_inputs


@pytest.mark.parametrize("part", ["_redirect", "_add_control_edges"])
def test_a_rewrite_that_does_not_keep_its_promise_is_found(part, monkeypatch):
    monkeypatch.setattr(f"lms3d.engine.passes.rewrite.{part}", lambda *_: 0)
    with pytest.raises(RuntimeError, match=r"the rewrite (lost '|of '.*' went wrong: expected)"):
        by_tflms(chain, HostTier())


def test_disk_tier_holds_back_the_buffer(tmp_path):
    from lms3d.engine.tiers.disk import DiskTier

    tier = DiskTier(tmp_path)
    made = by_tflms(chain, tier)
    nodes = {n for n in inserted(made.function) if not n.endswith("/shape")}
    assert nodes == {"lms/swap_out/a", "lms/hold/a", "lms/swap_in/a/0", "lms/swap_in/a/0/buffer"}
    assert [op.name for op in made.op("lms/swap_in/a/0/buffer").control_inputs] == ["f3"]
    made.function(batch())
    size = 64 * 32 * 4
    assert {k: v for k, v in tier.take_counters().items() if "bytes" in k} == dict.fromkeys(
        ("swapped_out_bytes", "swapped_in_bytes"), size
    )
    tier.close()


@pytest.mark.parametrize("function", [chain, fork, u_net])
def test_no_bit_changes_and_the_original_still_runs(function, tier):
    expected = functions.trace(function, SPEC)(batch())
    made = by_tflms(function, tier)
    assert made.change.changed
    assert made.change.swap_outs == len(made.plan.swap_outs) > 0
    for _ in range(3):
        same_bits(made.function(batch()), expected)
    same_bits(made.original(batch()), expected)


def test_an_output_and_an_op_of_like_names_are_two_tensors(tier):
    original = functions.trace(splits, SPEC)
    graph = capture(original)
    copies = {"split:1": "z", "split_1:0": "z1"}
    plan = Plan(
        swap_outs=tuple(SwapOut(tensor=one, bytes=graph.tensors[one].bytes) for one in copies),
        swap_ins=tuple(
            SwapIn(tensor=one, copy=0, consumers=(reader,), triggers=("after",)) for one, reader in copies.items()
        ),
    )
    function, change = rewrite(original, graph, plan, tier)
    assert change.swap_ins == 2
    same_bits(function(batch()), original(batch()))


def test_what_was_done_is_reported():
    made = by_tflms(fork, HostTier())
    change = made.change
    assert (change.swap_outs, change.swap_ins, change.redirected) == (1, 3, 3)
    assert (change.ops_before, change.ops_after) == (len(made.before.ops), len(made.before.ops) + 4)
    assert change.control_edges == 3
    assert "1 swap-outs, 3 swap-ins" in str(change)


def test_the_graph_is_what_the_plan_promised():
    from lms3d.engine import edit

    made = by_tflms(u_net, HostTier())
    found, expected = capture(made.function), edit.apply(made.before, made.plan)
    assert {o.name: (o.inputs, set(o.control_inputs)) for o in found.ops} == {
        o.name: (o.inputs, set(o.control_inputs)) for o in expected.ops
    }


@pytest.mark.parametrize(
    ("mode", "waiters", "triggers"),
    [(0, set(), {"f5"}), (1, {"near"}, {"f5"}), (2, set(), {"f6"}), (3, {"near"}, {"f6"})],
)
def test_sync_modes(mode, waiters, triggers, tier):
    made = by_tflms(fork, tier, parameters=replace(PARAMETERS, sync_mode=mode))
    waiting = {
        op.name
        for op in made.function.graph.get_operations()
        if "lms/swap_out/a" in {c.name for c in op.control_inputs}
    } - {"lms/hold/a"}
    assert waiting == waiters
    gate = base.gate(made.function.graph, made.op("lms/swap_in/a/0"))
    assert (gate.type == "LmsFetch") == (tier.name == "disk")
    assert {c.name for c in gate.control_inputs} == triggers
    same_bits(made.function(batch()), functions.trace(fork, SPEC)(batch()))


def test_grouping(tier):
    made = by_tflms(fork, tier, parameters=replace(PARAMETERS, swapin_groupby=3))
    assert [s.consumers for s in made.plan.swap_ins] == [("z6", "z8"), ("z12",)]
    assert made.op("z6").inputs[1].name == made.op("z8").inputs[1].name == "lms/swap_in/a/0:0"
    same_bits(made.function(batch()), functions.trace(fork, SPEC)(batch()))


def test_serialisation(tier):
    def wide(x: tf.Tensor) -> tf.Tensor:
        return tf.add_n([tf.sin(x, name="s"), tf.cos(x, name="c"), tf.tanh(x, name="t")])

    off = replace(PARAMETERS, swapout_threshold=99, serialization=(1,))
    made = by_tflms(wide, tier, parameters=off)
    assert [[c.name for c in made.op(n).control_inputs] for n in "sct"] == [[], ["s"], ["c"]]
    same_bits(made.function(batch()), functions.trace(wide, SPEC)(batch()))


def test_recompute(tier):
    function = functions.trace(chain, SPEC)
    expected = function(batch())
    again = Recompute(op="a", tensor="a:0", copy=0, consumers=("z",), triggers=("f4",))
    made, change = rewrite(function, capture(function), Plan(recomputes=(again,)), tier)
    copy = made.graph.get_operation_by_name("lms/recompute/a")
    assert (copy.type, [c.name for c in copy.control_inputs]) == ("Tanh", ["f4"])
    assert made.graph.get_operation_by_name("z").inputs[1].name == "lms/recompute/a:0"
    assert change.recomputes == 1
    same_bits(made(batch()), expected)


def test_a_swapped_tensor_that_a_recomputed_op_reads(tier):
    function = functions.trace(chain, SPEC)
    expected = function(batch())
    plan = Plan(
        swap_outs=(SwapOut(tensor="f1:0", bytes=8192),),
        swap_ins=(SwapIn(tensor="f1:0", copy=0, consumers=("lms/recompute/f2",), triggers=("f2",)),),
        recomputes=(Recompute(op="f2", tensor="f2:0", copy=0, consumers=("f3",), triggers=("lms/swap_out/f1",)),),
    )
    made, _ = rewrite(function, capture(function), plan, tier)
    assert made.graph.get_operation_by_name("lms/recompute/f2").inputs[0].name == "lms/swap_in/f1/0:0"
    same_bits(made(batch()), expected)


def test_an_empty_plan_changes_nothing():
    function = functions.trace(chain, SPEC)
    before = capture(function)
    _, change = rewrite(function, before, Plan(), HostTier())
    assert capture(function) == before
    assert not change.changed
    assert "nothing changed" in str(change)


def test_a_plan_that_makes_a_cycle_touches_nothing():
    function = functions.trace(chain, SPEC)
    before = capture(function)
    plan = Plan(
        swap_outs=(SwapOut(tensor="a:0", bytes=8192),),
        swap_ins=(SwapIn(tensor="a:0", copy=0, consumers=("z",), triggers=("z",)),),
    )
    with pytest.raises(ValueError, match="cycle"):
        rewrite(function, before, plan, HostTier())
    assert capture(function) == before


def test_several_outputs_and_types(tier):
    def mixed(x: tf.Tensor) -> dict:
        whole = tf.cast(x * 100, tf.int32, name="whole")
        half = tf.cast(x, tf.bfloat16, name="half")
        yes = tf.greater(x, 0, name="yes")
        f = x
        for _ in range(6):
            f = tf.sin(f)
        late = tf.cast(f, tf.int32)
        return {
            "whole": whole + late,
            "half": half * tf.cast(f, tf.bfloat16),
            "yes": tf.logical_and(yes, tf.greater(f, 0)),
        }

    expected = functions.trace(mixed, SPEC)(batch())
    made = by_tflms(mixed, tier)
    assert {s.tensor.rpartition(":")[0] for s in made.plan.swap_outs} >= {"whole", "half", "yes"}
    same_bits(made.function(batch()), expected)


def test_the_order_of_ops_does_not_decide_the_bits_of_a_sum():
    """AddN begins with the input that nobody else needs at that moment: which one that is hangs on who ran before."""

    def function(x: tf.Tensor) -> list[tf.Tensor]:
        read_four_times = tf.tanh(x) * 1e4 + tf.sin(x) / 3 + tf.square(x) * 1e-4 + tf.exp(x)
        return tf.gradients(tf.reduce_sum(tf.sin(read_four_times)), x)

    made = functions.trace(function, SPEC)
    assert not [op.name for op in made.graph.get_operations() if op.type == "AddN" and len(op.inputs) > 2]
    usual = tf.function(function, autograph=False).get_concrete_function(SPEC)
    assert [len(op.inputs) for op in usual.graph.get_operations() if op.type == "AddN"] == [4]
    same_bits(functions.make_function(made)(batch()), functions.make_function(usual)(batch()))

    def another_inside(x: tf.Tensor) -> list[tf.Tensor]:
        functions.trace(tf.sin, SPEC)
        return function(x)

    nested = functions.trace(another_inside, SPEC)
    assert not [op.name for op in nested.graph.get_operations() if op.type == "AddN"]
    assert "AddN" in {op.type for op in tf.function(function).get_concrete_function(SPEC).graph.get_operations()}


def test_planned_parameters_of_a_real_function_are_tuned():
    """The whole way with parameters that are left to the tuner."""
    from lms3d.engine.cost import Machine
    from lms3d.engine.step_model.simulate import simulate

    graph = capture(functions.trace(u_net, tf.TensorSpec((4096, 32), tf.float32)))
    fast = Machine(swap_out_bytes_per_second=1e12, swap_in_bytes_per_second=1e12)
    limit = int(simulate(graph, fast).peak_bytes * 0.95)
    assert not tflms.autotune(graph, tflms.Parameters(), limit, fast).empty


def test_memory_changes_hands_in_turn(tmp_path):
    """On the disk tier followers wait for a swap-in's buffer, and the original is held until its time is over."""
    from lms3d.engine.tiers.disk import DiskTier

    function = functions.trace(chain, SPEC)
    before = capture(function)
    expected = function(batch())
    out = SwapOut(tensor="a:0", bytes=before.tensors["a:0"].bytes, waiters=("f3",), until=("f2",))
    back = SwapIn(tensor="a:0", copy=0, consumers=("z",), triggers=("f3",), followers=("f4",))
    tier = DiskTier(tmp_path)
    made, _ = rewrite(function, before, Plan(swap_outs=(out,), swap_ins=(back,)), tier)

    def before_op(name: str) -> set[str]:
        return {op.name for op in made.graph.get_operation_by_name(name).control_inputs}

    assert "lms/swap_in/a/0/buffer" in before_op("f4")
    assert before_op("lms/hold/a") == {"lms/swap_out/a", "f2"}
    assert "lms/hold/a" in before_op("f3")
    assert [t.name for t in made.graph.get_operation_by_name("lms/hold/a").inputs] == ["a:0"]
    same_bits(made(batch()), expected)
    tier.close()


def crossing(x: tf.Tensor) -> tf.Tensor:
    """`r` is traced before `last`, which need not wait for it."""
    s, t = tf.tanh(x, name="s"), tf.exp(x, name="t")
    near = tf.cos(tf.sin(t, name="waiter"), name="near")
    r, last = tf.maximum(s, near, name="r"), tf.square(s, name="last")
    return tf.stack([r, last, t], name="z")


def test_an_arrival_and_a_hold_do_not_wait_for_each_other():
    """The hold of `t` waits for `last`, as in a step in which that runs early, although it reads `s` after `r` does."""
    function = functions.trace(crossing, SPEC)
    before, expected = capture(function), function(batch())
    size = before.tensors["s:0"].bytes
    outs = (SwapOut(tensor="s:0", bytes=size), SwapOut(tensor="t:0", bytes=size, waiters=("waiter",), until=("last",)))
    backs = (
        SwapIn(tensor="s:0", copy=0, consumers=("r", "last"), triggers=()),
        SwapIn(tensor="t:0", copy=0, consumers=("z",), triggers=()),
    )
    tier = slow_tier()()
    made, _ = rewrite(function, before, Plan(swap_outs=outs, swap_ins=backs), tier)
    assert capture(made).index["last"] < capture(made).index["waiter"]
    same_bits(made(batch()), expected)
    tier.close()


def test_a_host_tier_has_no_turns():
    function = functions.trace(chain, SPEC)
    before = capture(function)
    out = SwapOut(tensor="a:0", bytes=before.tensors["a:0"].bytes, waiters=("f3",), until=("f2",))
    back = SwapIn(tensor="a:0", copy=0, consumers=("z",), triggers=("f3",), followers=("f4",))
    made, _ = rewrite(function, before, Plan(swap_outs=(out,), swap_ins=(back,)), HostTier())
    assert inserted(made) == ["lms/swap_in/a/0", "lms/swap_out/a"]


def test_no_optimiser_changes_the_layout_of_tensors():
    """On a GPU it turns what float32 3D convolutions read and make; a processor does not show it."""
    options = functions._execution_options().graph_options.rewrite_options
    assert options.layout_optimizer == options.OFF
