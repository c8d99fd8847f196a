"""Guards before oneDNN's kernels: which ops get one."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lms3d.engine import liveness
from lms3d.engine.ir import FORWARDING_TYPES
from lms3d.engine.passes import guard, manager
from lms3d.engine.plan import Plan, SwapIn, SwapOut
from lms3d.engine.tensorflow import functions, surgery
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tiers.disk import DiskTier
from tests.lms3d.engine.traced import rewrite, with_guards

SIDE = 64  # 4 MiB a tensor


def guarded(step, *, planned: bool) -> set[str]:
    """The types of the ops that get a guard."""
    function = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((1, SIDE, SIDE, SIDE, 4)))
    function, count = with_guards(function, planned=planned)
    found = [
        op for op in function.graph.get_operations() if op.name.startswith(guard.GUARD_SCOPE) and op.type == "Empty"
    ]
    assert len(found) == count
    return {function.graph.get_operation_by_name(op.name.removeprefix(guard.GUARD_SCOPE)).type for op in found}


def _too_small(op, needed_bytes, before):
    _insert(op, needed_bytes - guard.ALIGNMENT, before)


def _too_early(op, needed_bytes, before):
    _insert(op, needed_bytes, ())


def _beside(op, needed_bytes, before):
    _insert(op, needed_bytes, before)
    surgery.set_control_inputs(op, ())


_insert = guard._insert


@pytest.mark.parametrize("broken", [_too_small, _too_early, _beside])
def test_an_op_that_no_guard_protects_is_found(broken, monkeypatch):
    function = functions.trace(lambda x: convolved(x + 1.0), tf.TensorSpec((1, SIDE, SIDE, SIDE, 4)))
    monkeypatch.setattr(guard, "_insert", broken)
    with pytest.raises(RuntimeError, match=r"pass guard: 'Conv3D' has no guard of 4,194,304 bytes; please report"):
        manager.run(function, [guard.Guard(planned=True)])


def convolved(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv3d(x, tf.ones((1, 1, 1, 4, 4)), [1] * 5, "SAME")


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        (lambda x: tf.nn.leaky_relu(convolved(x)), False),
        (lambda x: [tf.nn.leaky_relu(tf.reshape(made := convolved(x), (SIDE, -1))), tf.reduce_sum(made)], True),
        (lambda x: [tf.nn.leaky_relu(tf.slice(made := convolved(x), [0] * 5, made.shape)), tf.reduce_sum(made)], True),
        (lambda x: tf.nn.leaky_relu(tf.transpose(convolved(x), (0, 1, 2, 3, 4))), True),  # may be the same memory
        (lambda x: tf.nn.leaky_relu(tf.debugging.check_numerics(convolved(x), "")), True),
        (lambda x: tf.nn.leaky_relu(x), True),  # a batch is not the step's to overwrite
        (lambda x: tf.nn.leaky_relu(tf.reshape(convolved(x), (SIDE, -1))), False),  # as normalisation reshapes
        (lambda x: [tf.nn.leaky_relu(made := convolved(x)), tf.reduce_sum(made)], True),  # somebody else reads it
        (lambda x: [tf.nn.leaky_relu(made := convolved(x)), made], True),  # it is returned
    ],
    ids=["its own", "a view read twice", "a slice", "moved", "checked", "a batch", "a view", "read twice", "returned"],
)
def test_an_op_that_writes_into_its_input_asks_for_nothing_in_a_planned_step(step, kept):
    assert ("LeakyRelu" in guarded(step, planned=True)) == kept
    assert "LeakyRelu" in guarded(step, planned=False)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_copied_swap_in_may_be_written_into_and_a_mapped_one_not(mapped, tmp_path):
    def step(x: tf.Tensor) -> tf.Tensor:
        made = convolved(x)
        early = tf.reduce_sum(made, name="early")
        return tf.nn.leaky_relu(made, name="late") + early

    function = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((1, SIDE, SIDE, SIDE, 4)))
    graph = capture(function)
    root = next(op.outputs[0] for op in graph.ops if op.type == "Conv3D")
    plan = Plan(
        swap_outs=(SwapOut(tensor=root.name, bytes=root.bytes),),
        swap_ins=(SwapIn(tensor=root.name, copy=0, consumers=("late",), triggers=("early",), mapped=mapped),),
    )
    tier = DiskTier(tmp_path)
    try:
        made, _ = rewrite(function, graph, plan, tier)
        made, _ = with_guards(made, planned=True)
        names = {op.name for op in made.graph.get_operations()}
        assert (f"{guard.GUARD_SCOPE}late" in names) == mapped
    finally:
        tier.close()


@pytest.mark.parametrize("later", [False, True])
def test_a_guard_waits_for_no_swap_in_that_waits_for_its_op(later, monkeypatch):
    """The swap-in of what a second convolution makes may be triggered by the input of the first one, too."""

    def step(x: tf.Tensor) -> tf.Tensor:
        y = tf.sin(x)
        z = convolved(y)
        with tf.control_dependencies([y, z] if later else [y]):
            gate = tf.identity(x, name="gate")
        return convolved(z) + gate

    function = functions.trace(step, tf.TensorSpec((1, SIDE, SIDE, SIDE, 4)))
    graph = function.graph
    monkeypatch.setattr(guard.base, "gates", lambda graph: [graph.get_operation_by_name("gate")])
    assert manager.run(function, [guard.Guard(planned=True)]) == ("guard",)
    first = graph.get_operation_by_name(f"{guard.GUARD_SCOPE}Conv3D")
    assert ("gate" in {op.name for op in guard._waits_for(first)}) is not later
    functions.make_function(function)(tf.zeros((1, SIDE, SIDE, SIDE, 4)))


def test_the_model_knows_which_kernels_that_write_in_place_have_a_guard():
    assert liveness._GUARDED == guard.ONEDNN_TYPES & FORWARDING_TYPES
