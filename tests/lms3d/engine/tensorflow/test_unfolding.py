"""Functions without calls and loops: no bit changes, effects stay in order, and a plan moves what lay within."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine.liveness import peak_bytes
from lms3d.engine.tensorflow import bodies, functions, unfolding
from lms3d.engine.tensorflow.capture import capture
from lms3d.keras_step.attachment import trace_step
from lms3d.keras_step.callback import LMS
from tests.lms3d.engine.tensorflow.test_bodies import SPEC, block, gradient_of, looped, stacked
from tests.lms3d.engine.traced import batch, same_bits

ROUNDS = 4


def types(function) -> set[str]:
    return {op.type for op in function.graph.get_operations()}


def unfolded(step, *, calls_only: bool = False):
    """The trace of a step, and the unfolded function."""
    function = functions.trace(step, SPEC)
    made = unfolding.without_calls(function)
    return function, made if calls_only else unfolding.without_loops(made)


def equal_results(function, made) -> None:
    x = batch(0, SPEC)
    same_bits(functions.make_function(made)(x), functions.make_function(function)(x))


def mapped(x: tf.Tensor) -> tf.Tensor:
    """Two rounds of two loops, forwards and backwards, over halves of the argument."""
    halves = tf.reshape(x, (2, 128, 1024))
    return tf.map_fn(lambda half: tf.sin(half) * tf.tanh(half), tf.map_fn(tf.exp, halves))


def pairs_of_lists(x: tf.Tensor) -> tf.Tensor:
    """A loop that reads a list at two places, so that its gradient adds two lists."""
    rows = tf.TensorArray(tf.float32, ROUNDS, element_shape=(64, 1024), clear_after_read=False)
    rows = rows.unstack(tf.reshape(x, (ROUNDS, 64, 1024)))

    def one(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.tanh(y * rows.read(i) + rows.read((ROUNDS - 1) - i))

    return tf.while_loop(lambda i, y: i < ROUNDS, one, (0, tf.ones((64, 1024))))[1]


@tf.function(autograph=False, jit_compile=False)
def twice(x: tf.Tensor) -> tf.Tensor:
    return block(block(x)) * 2.0


@pytest.mark.parametrize(
    "step",
    [looped(5), stacked, gradient_of(mapped), gradient_of(pairs_of_lists)],
    ids=["gradient", "lists", "map", "sum"],
)
def test_loops_become_their_rounds(step):
    function, made = unfolded(step)
    assert types(function) & bodies.LOOPS
    assert not [kind for kind in types(made) if kind in bodies.LOOPS or "List" in kind]
    equal_results(function, made)


def test_calls_in_calls_become_their_ops():
    function, made = unfolded(gradient_of(twice), calls_only=True)
    assert "PartitionedCall" in types(function)
    assert "PartitionedCall" not in types(made)
    equal_results(function, made)


def test_a_function_without_any_stays_itself():
    function, made = unfolded(tf.sin)
    assert made is function


def concatenated(put: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], list[tf.Tensor]]:
    """Each round puts `put` of a tensor into a list, and an op without a rule reads that."""

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        rows = tf.TensorArray(tf.float32, ROUNDS, element_shape=put(x).shape)
        _, rows, last = tf.while_loop(
            lambda i, *_: i < ROUNDS, lambda i, a, y: (i + 1, a.write(i, put(y)), tf.sin(y)), (0, rows, x)
        )
        return [rows.concat(), last]

    return step


def test_an_op_without_a_rule_reads_a_real_list():
    function, made = unfolded(concatenated(lambda y: y[0]))
    assert not types(made) & bodies.LOOPS
    assert "TensorListSetItem" in types(made)
    equal_results(function, made)


def test_loops_stay_if_a_real_list_would_hold_large_tensors():
    """The capture of a loop knows how long the items of its lists last; that of an op in the step does not."""
    function, made = unfolded(concatenated(tf.tanh))
    assert made is function


def by_data(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda y: tf.reduce_sum(y) > 1.0, lambda y: (y / 2.0,), (tf.abs(x),))[0]


def with_numbers_of_its_own(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y + tf.random.uniform(SPEC.shape, seed=1)), (0, x))[1]


def of_crumbs(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y)), (0, x[0]))[1]


def with_effects(x: tf.Tensor) -> tf.Tensor:
    def one(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tf.raw_ops.PrintV2(input=tf.constant(""), end="")
        return i + 1, tf.sin(y)

    return tf.while_loop(lambda i, _: i < 3, one, (0, x))[1]


def that_grows(x: tf.Tensor) -> tf.Tensor:
    shapes = tf.TensorShape(()), tf.TensorShape((None, 1024))
    rounds = tf.while_loop(
        lambda i, _: i < 3, lambda i, y: (i + 1, tf.concat([y, y[:1]], 0)), (0, x), shape_invariants=shapes
    )
    return tf.reduce_sum(rounds[1])


@pytest.mark.parametrize("step", [by_data, with_numbers_of_its_own, of_crumbs, with_effects, that_grows])
def test_loops_that_stay(step):
    function, made = unfolded(step)
    assert made is function


def test_a_loop_that_stays_reads_the_list_of_one_that_does_not():
    def step(x: tf.Tensor) -> tf.Tensor:
        rows = tf.TensorArray(tf.float32, ROUNDS, element_shape=(64, 1024), clear_after_read=False)
        rows = rows.unstack(tf.reshape(x, (ROUNDS, 64, 1024)))
        whole = tf.while_loop(lambda i, _: i < ROUNDS, lambda i, y: (i + 1, y + rows.read(i)), (0, x[:64]))[1]
        by_data = tf.while_loop(
            lambda _, y: tf.reduce_max(y) > 1.0,
            lambda i, y: (i + 1, y / 2.0 + rows.read(i % ROUNDS) / 64.0),
            (0, whole),
        )
        return by_data[1]

    function, made = unfolded(step)
    assert [op.type for op in made.graph.get_operations() if op.type in bodies.LOOPS] == ["StatelessWhile"]
    assert "TensorListSetItem" not in types(made)
    equal_results(function, made)


def test_a_loop_of_too_many_rounds_stays(monkeypatch):
    monkeypatch.setattr(unfolding, "UNFOLDED_OPS", 20)
    function, made = unfolded(looped(50))
    assert made is function


def test_reads_and_updates_of_variables_stay_in_order():
    """The loop and the calls read the variable before it is updated, and after."""
    weight = tf.Variable(1.0)

    @tf.function(autograph=False, jit_compile=False)
    def update(amount: tf.Tensor) -> tf.Tensor:
        weight.assign_add(amount)
        return weight * 10.0

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        def loop() -> tf.Tensor:
            return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * weight), (0, tf.ones_like(x)))[1][0, 0]

        return [loop(), update(1.0), loop(), update(2.0), loop()]

    _, made = unfolded(step)
    assert not {"While", "StatefulPartitionedCall", "PartitionedCall"} & types(made)
    found = [one.numpy() for one in functions.make_function(made)(batch(0, SPEC))]
    assert found == [1.0, 20.0, 8.0, 40.0, 64.0]
    assert weight.numpy() == 4.0


def never(x: tf.Tensor) -> tf.Tensor:
    """A loop of no rounds."""
    return tf.while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, tf.tanh(y)), (0, x))[1]


@pytest.mark.parametrize("between", [twice, never])
def test_what_waits_for_a_call_or_a_loop_waits_for_all_before_it(between):
    """Neither has effects, and `last` reads nothing of it."""
    variable = tf.Variable(0.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        written = variable.assign(1.0, read_value=False)
        with tf.control_dependencies([written]):
            y = between(x)
        maker = y.op.inputs[0].op if y.op.type == "Identity" else y.op
        with tf.control_dependencies([maker]):
            return tf.identity(x, name="last") + y

    _, made = unfolded(step)
    assert not types(made) & {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"}
    before, seen = [made.graph.get_operation_by_name("last")], set[str]()
    while before:
        op = before.pop()
        if op.name not in seen:
            seen.add(op.name)
            before += [*op.control_inputs, *(t.op for t in op.inputs)]
    assert {op.name for op in made.graph.get_operations() if op.type == "AssignVariableOp"} & seen


def test_a_function_whose_gradient_was_taken_is_called_without_it():
    """TensorFlow adds what the gradient needs to the outputs of the same graph; a validation step calls it without."""
    called = tf.function(lambda x: tf.sin(x) * tf.tanh(x), autograph=False)
    functions.trace(lambda x: gradient_of(called)(x), SPEC)
    function, made = unfolded(lambda x: called(x) + 1.0)
    assert "PartitionedCall" in types(function)
    assert "PartitionedCall" not in types(made)
    equal_results(function, made)


@pytest.mark.parametrize("layer", [keras.layers.GRU(64), keras.layers.LSTM(64)], ids=["GRU", "LSTM"])
def test_recurrent_layers_train_to_the_same_bits(layer):
    given = keras.Input((3, 32))
    model = keras.Model(given, layer(given))
    model.compile("sgd", "mse", jit_compile=False)
    function = trace_step(model, "train", (tf.TensorSpec((1024, 3, 32)), tf.TensorSpec((1024, 64))))
    made = unfolding.without_loops(unfolding.without_calls(function))
    assert types(function) & bodies.LOOPS
    assert not [kind for kind in types(made) if kind in bodies.LOOPS or "List" in kind]
    x, y = batch(0, tf.TensorSpec((1024, 3, 32))), batch(1, tf.TensorSpec((1024, 64)))
    start, ends = model.get_weights(), []
    for one in (function, made):
        model.set_weights(start)
        functions.make_function(one)((x, y))
        ends.append(model.get_weights())
    same_bits(*ends)


def recurrent(weight: tf.Variable):
    """A step of a network with a loop that reads a variable, with its update."""

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.while_loop(lambda i, _: i < 12, lambda i, y: (i + 1, tf.tanh(tf.matmul(tf.sin(y), weight))), (0, x))[
                1
            ]
            loss = tf.reduce_mean(tf.square(block(y)))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    return step


def test_a_plan_moves_what_a_loop_and_a_call_hold(tmp_path):
    """In two fifths of the memory that the step takes, with the same bits. Without the unfolding there is no such plan."""
    start = np.random.default_rng(1).normal(size=(1024, 1024)).astype(np.float32) / 32
    weight = tf.Variable(start)
    function = functions.trace(recurrent(weight), SPEC)
    x = batch(0, SPEC)
    expected = [functions.make_function(function)(x).numpy() for _ in range(2)], weight.numpy()
    without = LMS(enabled=False)
    without.rewrite(functions.trace(recurrent(weight), SPEC))
    assert without.report is not None
    weight.assign(start)
    limit = without.report.unedited_limit_bytes * 4 // 10
    lms = LMS(memory_limit=limit, slabs="off", tier="disk", swap_dir=tmp_path)
    made = lms.rewrite(functions.trace(recurrent(weight), SPEC))
    assert lms.plan is not None
    assert lms.plan.swap_outs or lms.plan.recomputes
    same_bits(([made(x).numpy() for _ in range(2)], weight.numpy()), expected)
    lms.close()


def test_a_call_is_counted_as_the_ops_that_it_runs():
    """The forward call of a differentiated function returns all that the gradient may want; not all of that lasts."""
    function, made = unfolded(gradient_of(twice), calls_only=True)
    assert peak_bytes(capture(made)) < peak_bytes(capture(function))


def test_the_graph_of_a_function_is_let_go():
    """Neither the trace nor the unfolded function stays in memory."""
    function, made = unfolded(gradient_of(twice))
    graphs = [weakref.ref(function.graph), weakref.ref(made.graph)]
    functions.forget(made.graph)
    del function, made
    gc.collect()
    assert [one() for one in graphs] == [None, None]
