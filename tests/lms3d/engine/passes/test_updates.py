"""Variables stay where they are, however late an op reads their old value."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine import liveness
from lms3d.engine.engine import Engine
from lms3d.engine.passes import assignments, manager, updates
from lms3d.engine.passes.base import Target
from lms3d.engine.plan import Plan, Recompute
from lms3d.engine.request import Settings
from lms3d.engine.step_model import order
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tiers.host import HostTier
from tests.lms3d.engine.traced import rewrite
from tests.lms3d.pool import address

SHAPE = (256, 256)
LATE_SECONDS = 0.2


def late(x: tf.Tensor) -> tf.Tensor:
    """`x`, some time later."""

    def wait(value: np.ndarray) -> np.ndarray:
        time.sleep(LATE_SECONDS)
        return value

    passed = tf.numpy_function(wait, [x], x.dtype)
    return tf.ensure_shape(passed, x.shape)


def product(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    return tf.matmul(late(x), w)


def through_a_view(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    return tf.reduce_sum(late(x)[0, 0] * tf.reshape(w, (-1,)))


def through_a_slice(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    return tf.reduce_sum(late(x) * tf.unstack(w)[0])


def twice(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    """Updated in between: the second reader needs the new value."""
    first = tf.matmul(late(x), w)
    w.assign_add(tf.ones(SHAPE))
    return tf.matmul(first, w)


def by_a_kernel_of_its_own(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    result = product(x, w)
    tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=0.5, delta=tf.ones(SHAPE))
    return result


def before_a_branch(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    result = product(x, w)
    tf.cond(x[0, 0] > 0, lambda: w.assign_sub(tf.fill(SHAPE, 0.5)), lambda: w.read_value())
    return result


def within_a_branch(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    def branch() -> tf.Tensor:
        result = product(x, w)
        w.assign_sub(tf.fill(SHAPE, 0.5))
        return result

    return tf.cond(x[0, 0] > 0, branch, lambda: x)


READERS = [
    product,
    through_a_view,
    through_a_slice,
    twice,
    by_a_kernel_of_its_own,
    before_a_branch,
    within_a_branch,
]
Reader = Callable[[tf.Tensor, tf.Variable], tf.Tensor]


def traced(reader: Reader, w: tf.Variable) -> Any:
    def step(x: tf.Tensor) -> tf.Tensor:
        result = reader(x, w)
        w.assign_sub(tf.fill(SHAPE, 0.25))
        return result

    return functions.trace(step, tf.TensorSpec((1, SHAPE[0])))


@pytest.mark.parametrize("reader", READERS)
def test_an_update_waits_for_those_who_read_the_old_value(reader):
    results, moved = {}, {}
    for held in (False, True):
        w, x = tf.Variable(tf.random.stateless_normal(SHAPE, (1, 2))), tf.ones((1, SHAPE[0]))
        function = traced(reader, w)
        if held:
            assert updates.hold_back(function.graph) > 0
            assert updates.hold_back(function.graph) == 0  # they are there
        before = address(w)
        results[held] = [functions.make_function(function)(x).numpy(), w.numpy()]
        moved[held] = address(w) != before
    assert moved == {False: True, True: False}
    for without, with_edges in zip(results[False], results[True], strict=True):
        np.testing.assert_array_equal(with_edges, without)


class Unheld(updates.HoldBack):
    """A pass that does not keep its promise."""

    def edit(self, graph: tf.Graph) -> int:
        return 1


@pytest.mark.parametrize("reader", READERS)
def test_an_update_that_may_come_too_early_is_found(reader):
    function = traced(reader, tf.Variable(tf.ones(SHAPE)))
    with pytest.raises(RuntimeError, match=r"pass updates: '.*' does not wait for '.*', which reads the old value"):
        manager.run(function, [Unheld(Target())])
    assert manager.run(function, [updates.HoldBack(Target())]) == ("updates",)


def test_who_needs_the_old_value_after_the_update_gets_it():
    """Here the update cannot wait: it moves the variable, and nothing locks up."""
    w = tf.Variable(tf.ones(SHAPE))

    def step() -> tf.Tensor:
        old = w.read_value()
        w.assign_sub(tf.fill(SHAPE, 0.25))
        return old - w.read_value()

    function = functions.trace(step)
    updates.hold_back(function.graph)
    updates.HoldBack(Target()).ensures(function)
    np.testing.assert_array_equal(functions.make_function(function)(), np.full(SHAPE, 0.25, np.float32))


def test_ops_that_never_run_do_not_run_for_it():
    w = tf.Variable(tf.ones(SHAPE))

    def step(x: tf.Tensor) -> None:
        product(x, w)  # nobody reads it; the graph keeps it
        w.assign_sub(tf.fill(SHAPE, 0.25))

    function = functions.trace(step, tf.TensorSpec((1, SHAPE[0])))
    updates.hold_back(function.graph)
    held = [c.type for op in function.graph.get_operations() for c in op.control_inputs]
    assert "MatMul" not in held


def test_an_op_that_is_computed_again_reads_the_old_value_in_time():
    w, x = tf.Variable(tf.random.stateless_normal(SHAPE, (1, 2))), tf.ones((1, SHAPE[0]))

    def step(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, w, name="again")
        delayed = tf.identity(late(x), name="late")
        w.assign_sub(tf.fill(SHAPE, 0.25))
        return tf.multiply(y, delayed, name="reader")

    expected = functions.make_function(functions.trace(step, tf.TensorSpec(x.shape)))(x).numpy()
    w.assign(tf.random.stateless_normal(SHAPE, (1, 2)))
    before = address(w)
    function = functions.trace(step, tf.TensorSpec(x.shape))
    again = Recompute(op="again", tensor="again:0", copy=0, consumers=("reader",), triggers=("late",))
    made, _ = rewrite(function, capture(function), Plan(recomputes=(again,)), HostTier())
    np.testing.assert_array_equal(made(x), expected)
    assert address(w) == before


def standardised(w: tf.Variable) -> tf.Tensor:
    """As in a network of standardised weights: the mean and the variance are small."""
    mean, variance = tf.nn.moments(tf.convert_to_tensor(w), [0], keepdims=True)
    return (w - mean) * tf.math.rsqrt(variance + 1e-3)


@pytest.mark.parametrize("made", [lambda w: tf.reverse(w, [0]) + tf.reverse(w, [1]), standardised])
def test_an_update_waits_for_readers_of_a_tensor_that_is_made_of_the_variable(made):
    function = traced(lambda x, w: tf.matmul(x, made(w), name="reader"), tf.Variable(tf.ones(SHAPE)))
    updates.hold_back(function.graph)
    (update,) = (op for op in function.graph.get_operations() if op.type == "AssignSubVariableOp")
    assert "reader" in {op.name for op in update.control_inputs}


def test_a_tensor_that_is_made_of_others_too_is_no_value_of_the_variable():
    """To make it again takes the others, and those are there as late as a plan likes."""

    def mixed(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
        sums = w + tf.matmul(x, x, transpose_a=True)
        return tf.matmul(sums, sums, name="reader")

    function = traced(mixed, tf.Variable(tf.ones(SHAPE)))
    updates.hold_back(function.graph)
    (update,) = (op for op in function.graph.get_operations() if op.type == "AssignSubVariableOp")
    waited = {op.type for op in update.control_inputs}
    assert "AddV2" in waited
    assert "MatMul" not in waited


@pytest.mark.parametrize("made", [lambda w: tf.reverse(w, [0]), standardised])
def test_a_variable_stays_where_it_is_while_a_plan_makes_a_tensor_of_it_again(made):
    w, x = tf.Variable(tf.random.stateless_normal(SHAPE, (1, 2))), tf.ones(SHAPE)

    def step(x: tf.Tensor) -> tf.Tensor:
        kernel = made(w)
        hidden = deep(tf.matmul(x, kernel), x)
        w.assign_sub(tf.matmul(x, hidden))
        return tf.matmul(deep(hidden, x), kernel)

    assert moved_by_recomputing(step, x, w) & {"ReverseV2", "mul"}


def deep(hidden: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    for _ in range(4):
        hidden = tf.nn.relu(tf.matmul(hidden, x))
    return hidden


def moved_by_recomputing(step: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, w: tf.Variable) -> set[str]:
    """The ops that a plan which recomputes all that it can computes again. It must not move `w`."""
    function, before = functions.trace(step, tf.TensorSpec(SHAPE)), address(w)
    settings = Settings(limit_bytes=1 << 40, planner="recompute_everything")
    prepared = Engine(settings, compute_device="CPU:0").prepare(function, "function")
    prepared.function(x)
    assert address(w) == before
    return {again.op for again in prepared.plan.recomputes}


def test_a_variable_that_must_be_updated_early_stays_where_it_is():
    """As by the decay of the first layer's weights, which waits for no gradient: its output is not computed again (SCHEDULE-7)."""
    w, x = tf.Variable(tf.random.stateless_normal(SHAPE, (1, 2))), tf.ones(SHAPE)

    def step(x: tf.Tensor) -> tf.Tensor:
        first = tf.matmul(x, w, name="first")
        w.assign_sub(w * 0.01)
        second = tf.matmul(x, x, name="second")
        return tf.matmul(deep(deep(first, x) + second, x), first) + second

    assert moved_by_recomputing(step, x, w) == {"second"}


def test_products_of_an_update_alone_wait_like_the_update():
    """The decay of all weights, made at the start of the step, would take as much memory as they do (UPDATE-5)."""
    rate, weights = tf.Variable(0.01), [tf.Variable(tf.eye(SHAPE[0])) for _ in range(4)]

    def step(x: tf.Tensor) -> tf.Tensor:
        for w in weights:
            x = tf.matmul(x, w)
        for w in weights:
            w.assign_sub(w * 0.1 * rate)
        return x

    results = {}
    for held in (False, True):
        function = functions.trace(step, tf.TensorSpec(SHAPE))
        if held:
            assert updates.hold_back(function.graph) > 0
            assert updates.hold_back(function.graph) == 0
            updates.HoldBack(Target()).ensures(function)
            graph = order.ready_first(capture(function))
            assert liveness.peak_bytes(graph) - graph.resident_bytes < 3 * 4 * SHAPE[0] * SHAPE[1]
        results[held] = [functions.make_function(function)(tf.ones(SHAPE)), *(w.numpy() for w in weights)]
        for w in weights:
            w.assign(tf.eye(SHAPE[0]))
    for without, with_edges in zip(results[False], results[True], strict=True):
        np.testing.assert_array_equal(with_edges, without)


def coupled(v: tf.Variable, w: tf.Variable) -> None:
    first, second = 0.1 * (v - w), 0.1 * (w - v)
    v.assign_sub(first)
    w.assign_sub(second)


def updated_twice(v: tf.Variable, w: tf.Variable) -> None:
    old = v.read_value()
    first, second = 0.1 * old, 0.2 * tf.sign(old)
    v.assign_sub(first)
    v.assign_sub(second)
    w.assign_add(old)


def awaited(v: tf.Variable, w: tf.Variable) -> None:
    decayed = v * 0.1
    with tf.control_dependencies([decayed]):
        w.assign_add(tf.reverse(v, [0]))
    v.assign_sub(decayed)


def far(v: tf.Variable, w: tf.Variable) -> None:
    """Many ways lead from the variable to its change."""
    change = v.read_value()
    for _ in range(30):
        change = change + tf.sin(change) + tf.cos(change)
    v.assign_sub(1e-30 * change)


@pytest.mark.parametrize("update", [coupled, updated_twice, awaited, far])
def test_products_of_updates_that_wait_for_each_other_make_no_cycle(update):
    results = []
    for held in (False, True):
        v, w = (tf.Variable(tf.random.stateless_normal(SHAPE, (i, 2))) for i in range(2))
        function = functions.trace(functools.partial(update, v, w))
        if held:
            updates.hold_back(function.graph)
            assert updates.hold_back(function.graph) == 0
            updates.HoldBack(Target()).ensures(function)
        functions.make_function(function)()
        results.append([v.numpy(), w.numpy()])
    for without, with_edges in zip(*results, strict=True):
        np.testing.assert_array_equal(with_edges, without)


def test_lms_holds_updates_back():
    w, x = tf.Variable(tf.random.stateless_normal(SHAPE, (1, 2))), tf.ones((1, SHAPE[0]))
    function = traced(product, w)
    before = address(w)
    prepared = Engine(Settings(limit_bytes=1 << 40, planner="off"), compute_device="CPU:0").prepare(
        function, "function"
    )
    prepared.function(x)
    assert address(w) == before


def updated_together(rates: list[tf.Variable], update: str) -> Callable[[tf.Tensor], None]:
    def branch(x: tf.Tensor) -> tf.Tensor:
        changes = tf.identity_n([x * rate for rate in rates])  # as Keras clips gradients
        for rate, change in zip(rates, changes, strict=True):
            getattr(rate, update)(change)
        return x[0, 0]

    return lambda x: tf.cond(x[0, 0] > 0, lambda: branch(x), lambda: x[0, 0])


@pytest.mark.parametrize("update", ["assign_sub", "assign"])
def test_within_a_branch_one_variable_is_updated_after_the_other(update):
    """Else all changes of an optimiser that accumulates gradients would exist at once."""
    count, size = 8, 4 * SHAPE[0] * SHAPE[1]
    most, results = {}, {}
    for held in (False, True):
        rates = [tf.Variable(tf.fill(SHAPE, 1.0 + i)) for i in range(count)]
        function = functions.trace(updated_together(rates, update), tf.TensorSpec(SHAPE))
        if held:
            assignments.write_in_place(function.graph)
            assert updates.hold_back(function.graph) > 0
            assert updates.hold_back(function.graph) == 0
        most[held] = max(op.workspace_bytes for op in capture(function).ops)
        functions.make_function(function)(tf.fill(SHAPE, 0.25))
        results[held] = [rate.numpy() for rate in rates]
    assert most[False] > (count - 1) * size
    assert most[True] <= 2 * size
    for without, with_edges in zip(results[False], results[True], strict=True):
        np.testing.assert_array_equal(with_edges, without)


def test_gradients_that_are_computed_in_a_branch_need_not_wait():
    """The first layer's needs all others, which would keep their inputs."""
    weights = [tf.Variable(tf.eye(SHAPE[0])) for _ in range(6)]

    def branch(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for w in weights:
                y = tf.nn.relu(tf.matmul(y, w))
            loss = tf.reduce_mean(y)
        for w, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(gradient)
        return loss

    function = functions.trace(lambda x: tf.cond(x[0, 0] > 0, lambda: branch(x), lambda: 0.0), tf.TensorSpec(SHAPE))
    before = max(op.workspace_bytes for op in capture(function).ops)
    updates.hold_back(function.graph)
    assert max(op.workspace_bytes for op in capture(function).ops) <= before
    functions.make_function(function)(tf.ones(SHAPE))


def test_what_a_branch_returns_counts_once():
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(x[0, 0] > 0, lambda: tf.reverse(x, [0]), lambda: x + 1.0)

    graph = capture(functions.trace(step, tf.TensorSpec(SHAPE)))
    assert max(op.workspace_bytes for op in graph.ops) < 1 << 10
