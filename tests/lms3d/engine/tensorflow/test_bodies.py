"""What branches, loops and calls hold is counted: their lists, their rounds, their own tensors."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lms3d.engine.ir import Op
from lms3d.engine.passes.base import Target
from lms3d.engine.passes.shapes import FixShapes, infer_shapes
from lms3d.engine.tensorflow import bodies, functions
from lms3d.engine.tensorflow.capture import capture
from tests.lms3d.engine.traced import of_type

SPEC = tf.TensorSpec((256, 1024))  # 1 MiB
MIB = 1 << 20


def op_of(step, op_type: str, number: int = 0) -> Op:
    found = [op for op in capture(functions.trace(step, SPEC)).ops if op.type == op_type]
    return found[number]


def looped(rounds: int):
    """Each round keeps its argument and its result for the gradient."""

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            last = tf.while_loop(lambda i, y: i < rounds, lambda i, y: (i + 1, tf.sin(tf.tanh(y))), (0, x))[1]
        return tape.gradient(last, x)

    return step


@pytest.mark.parametrize("rounds", [2, 8])
def test_a_loop_keeps_what_each_round_puts_into_a_list(rounds):
    loop = op_of(looped(rounds), "StatelessWhile")
    results = sum(t.bytes or 0 for t in loop.outputs)
    # tanh, which sin reads, in each round; and the result
    assert rounds * MIB <= results - MIB < (rounds + 1) * MIB


def test_the_gradient_of_a_loop_has_its_rounds():
    loops = [op for op in functions.trace(looped(8), SPEC).graph.get_operations() if op.type == "StatelessWhile"]
    assert [bodies.rounds(loop) for loop in loops] == [8, 8]


def test_a_loop_whose_end_depends_on_data_counts_one_round():
    function = functions.trace(
        lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) > 1.0, lambda y: (y / 2,), (x,))[0], SPEC
    )
    assert bodies.rounds(of_type(function, "StatelessWhile")) == 1


def test_rounds_that_wait_for_none_run_side_by_side():
    def each(x: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(lambda row: tf.reduce_sum(tf.sort(tf.tile(row, (64,)))), x, parallel_iterations=4)

    one, many = ((loop := op_of(each, "StatelessWhile")).workspace_bytes // 4, loop.workspace_bytes)
    assert one >= 64 * 1024 * 4
    assert many == 4 * one


def test_a_branch_keeps_what_its_gradient_reads():
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(tf.tanh(tf.sin(x))), lambda: tf.zeros_like(x))
        return tape.gradient(y, x)

    branch = op_of(step, "StatelessIf")
    # the result, and what tanh made: its own gradient reads that, and so does the one of sin
    assert 2 * MIB <= sum(t.bytes or 0 for t in branch.outputs) < 3 * MIB
    assert op_of(step, "StatelessIf", 1).workspace_bytes >= MIB


@tf.function(autograph=False, jit_compile=False, input_signature=[tf.TensorSpec((None, 1024))])
def block(x: tf.Tensor) -> tf.Tensor:
    """Traced for any batch."""
    return tf.sin(tf.tanh(x) * tf.sin(x))


def test_a_call_of_a_function_that_was_traced_for_any_batch():
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(block(x))
        return tf.cos(tape.gradient(loss, x))

    function = functions.trace(step, SPEC)
    assert infer_shapes(function.graph)
    calls = [op for op in capture(function).ops if op.type == "PartitionedCall"]
    assert all(t.bytes is not None for call in calls for t in call.outputs)
    assert sum(t.bytes or 0 for t in calls[0].outputs) >= 3 * MIB
    assert calls[1].workspace_bytes >= MIB


def loop_of(one_round):
    """The shapes after five rounds of a tensor that may have any length, and of the argument."""

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        last = tf.while_loop(
            lambda i, y: i < 5, lambda i, y: (i + 1, one_round(y)), (0, x),
            shape_invariants=(tf.TensorShape(()), tf.TensorShape((None, 1024))),
        )[1]  # fmt: skip
        return tf.raw_ops.ShapeN(input=[last, x])

    return step


@pytest.mark.parametrize(("one_round", "rows"), [(tf.sin, 256), (lambda y: tf.concat([y, y[:1]], 0), 261)])
def test_a_loop_whose_rounds_grow_keeps_an_unknown_shape(one_round, rows):
    function = functions.trace(loop_of(one_round), SPEC)
    FixShapes(Target()).run(function)
    loop = of_type(function, "StatelessWhile")
    assert any(t.shape == (256, 1024) for t in loop.outputs) == (rows == 256)
    assert functions.make_function(function)(tf.zeros(SPEC.shape))[0].numpy().tolist() == [rows, 1024]


def gradient_of(called):
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(called(x))
        return tape.gradient(loss, x)

    return step


def stacked(x: tf.Tensor) -> tf.Tensor:
    """Each round writes its result, which the gradient of the next round reads."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        rows = tf.TensorArray(tf.float32, 8, element_shape=SPEC.shape)
        made = tf.while_loop(lambda i, y, a: i < 8, lambda i, y, a: (i + 1, tf.sin(y), a.write(i, y)), (0, x, rows))
        loss = tf.reduce_sum(made[2].stack())
    return tape.gradient(loss, x)


def test_of_two_lists_of_the_same_tensors_the_one_that_is_read_last_has_their_bytes():
    forward, backward = loops(stacked)
    held = {t.name: t.bytes for t in forward.outputs if (t.bytes or 0) > MIB}
    assert list(held.values()) == [7 * MIB]
    assert held.keys() <= set(backward.inputs)


def loops(step) -> list[Op]:
    return [op for op in capture(functions.trace(step, SPEC)).ops if op.type in bodies.LOOPS]


def test_a_list_that_a_loop_reads_lasts_if_the_gradient_reads_the_same_tensors():
    forward, _ = loops(gradient_of(lambda x: tf.map_fn(tf.sin, x)))
    assert sum(t.bytes or 0 for t in forward.outputs) >= 2 * MIB  # results, and inputs
    forward, _ = loops(gradient_of(lambda x: tf.map_fn(tf.exp, x)))
    assert MIB <= sum(t.bytes or 0 for t in forward.outputs) < 2 * MIB  # the gradient reads the results
