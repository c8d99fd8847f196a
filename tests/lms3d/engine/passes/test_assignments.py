"""What a step assigns is written into the memory that the variable has, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from lms3d.engine.engine import Engine
from lms3d.engine.passes import assignments, updates
from lms3d.engine.passes.base import Target
from lms3d.engine.request import Settings
from lms3d.engine.step_model.pool import CPU_POOL, NO_POOL
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import held_bytes
from tests.lms3d.pool import address

SHAPE = (256, 256)
ODD = np.resize(np.array([-0.0, np.inf, -np.inf, np.nan, 1e-45, 3.0, 0.0], np.float32), SHAPE)
OLD = np.resize(np.array([np.nan, 1.0, -0.0, np.inf, 2.0], np.float32), SHAPE)

Step = Callable[[tf.Variable, tf.Tensor], Any]


def plainly(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    w.assign(tf.reverse(x, [0]))
    return w.read_value()[0, 0]


def twice(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    w.assign(tf.reverse(x, [0]))
    first = tf.reduce_sum(w[0, 5])
    w.assign(tf.reverse(w, [1]))
    return first


def from_itself(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    old = w.read_value()
    w.assign(tf.where(tf.math.is_finite(old), 0.5 * old, x))
    return w[0, 0]


def in_a_branch(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    tf.cond(x[1, 1] > -1e30, lambda: w.assign(tf.reverse(x, [0])), lambda: w.assign(x + w))
    return w[0, 0]


def in_a_branch_of_a_branch(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    def inner() -> tf.Tensor:
        return tf.cond(x[0, 5] > 2, lambda: w.assign(tf.reverse(x, [0])), lambda: w.read_value())

    tf.cond(x[0, 5] > 1, inner, lambda: w.read_value())
    return w[0, 0]


STEPS = [plainly, twice, from_itself, in_a_branch, in_a_branch_of_a_branch]


def traced(step: Step, w: tf.Variable) -> Any:
    return functions.trace(lambda x: step(w, x), tf.TensorSpec(SHAPE, w.dtype))


def bits(value: tf.Tensor | tf.Variable) -> bytes:
    return bytes(np.asarray(tf.bitcast(value, tf.uint8)).tobytes())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("step", STEPS)
def test_the_variable_has_the_same_bits_where_it_was(step, dtype):
    found = {}
    for in_place in (False, True):
        w, x = tf.Variable(tf.reverse(tf.cast(OLD, dtype), [0])), tf.cast(ODD, dtype)
        function = traced(step, w)
        if in_place:
            assert assignments.write_in_place(function.graph) > 0
            assert assignments.write_in_place(function.graph) == 0  # they are
            updates.hold_back(function.graph)
        before = address(w)
        found[in_place] = [bits(functions.make_function(function)(x)), bits(w)]
        assert address(w) == before or not in_place
    assert found[True] == found[False]


@pytest.mark.parametrize("step", STEPS)
def test_an_assignment_that_moves_is_told(step):
    w = tf.Variable(OLD)
    function, one = traced(step, w), assignments.WriteInPlace(Target(pooled=True))
    with pytest.raises(RuntimeError, match=r"pass assignments: '.*' still moves its variable"):
        one.ensures(function)
    one.run(function)
    one.ensures(function)


@pytest.mark.parametrize("step", STEPS)
def test_nobody_else_who_holds_the_memory_sees_it_change(step):
    w = tf.Variable(OLD)
    other = tf.Variable(tf.zeros(SHAPE))
    other.assign(w)  # the two share their memory
    kept = w.read_value()
    function = traced(step, w)
    assert assignments.write_in_place(function.graph) > 0
    functions.make_function(function)(tf.constant(ODD))
    assert bits(w) != bits(OLD)
    assert bits(kept) == bits(other) == OLD.tobytes()


def test_a_late_reader_gets_the_old_value():
    w = tf.Variable(tf.ones(SHAPE))

    def step(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
        old = w.read_value()
        w.assign(2.0 * x)
        with tf.control_dependencies([w.read_value()]):
            return old + tf.zeros(SHAPE)

    function = traced(step, w)
    assert assignments.write_in_place(function.graph) == 1
    np.testing.assert_array_equal(functions.make_function(function)(tf.ones(SHAPE)), np.ones(SHAPE))
    np.testing.assert_array_equal(w, np.full(SHAPE, 2.0))


def test_what_cannot_be_updated_in_place_is_left_alone():
    small = tf.Variable(tf.zeros((8, 8)))
    number = tf.Variable(tf.zeros(SHAPE, tf.int64))
    shapeless = tf.Variable(tf.zeros(SHAPE), shape=tf.TensorShape(None))
    empty = resource_variable_ops.UninitializedVariable(shape=SHAPE, dtype=tf.float32)

    def step(x: tf.Tensor) -> None:
        small.assign(x[:8, :8])
        number.assign(tf.cast(x, tf.int64))
        shapeless.assign(x)
        empty.assign(x)

    function = functions.trace(step, tf.TensorSpec(SHAPE))
    assert assignments.write_in_place(function.graph) == 0
    functions.make_function(function)(tf.ones(SHAPE))
    for variable in (number, shapeless, empty):
        np.testing.assert_array_equal(variable.read_value(), np.ones(SHAPE))


def in_a_loop(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    def again(i: tf.Tensor) -> tuple[tf.Tensor]:
        w.assign(tf.reverse(x, [0]))
        return (i + 1,)

    return tf.while_loop(lambda i: i < 2, again, [0])[0]


def in_a_case(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    return tf.switch_case(tf.cast(x[0, 5], tf.int32) - 2, [lambda: w[0, 0], lambda: w.assign(tf.reverse(x, [0]))[0, 0]])


def in_a_called_function(w: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    @tf.function(autograph=False)
    def called(x: tf.Tensor) -> tf.Tensor:
        w.assign(tf.reverse(x, [0]))
        return w[0, 0]

    return called(x)


@pytest.mark.parametrize("step", [in_a_loop, in_a_case, in_a_called_function])
def test_assignments_elsewhere_are_left_alone(step):
    w = tf.Variable(OLD)
    function = traced(step, w)
    assert assignments.write_in_place(function.graph) == 0
    functions.make_function(function)(tf.constant(ODD))
    assert bits(w) == ODD[::-1].tobytes()


@pytest.mark.parametrize("step", STEPS)
def test_a_plan_counts_no_byte_more(step):
    w = tf.Variable(OLD)
    function = traced(step, w)
    before = held_bytes(function.graph)
    assert assignments.write_in_place(function.graph) > 0
    assert held_bytes(function.graph) == before


def test_a_step_that_fails_between_leaves_finite_values():
    """The first of the added ops does not change the variable."""
    w = tf.Variable(tf.fill(SHAPE, 3.0))
    function = traced(plainly, w)
    assignments.write_in_place(function.graph)
    first = next(op for op in function.graph.get_operations() if op.type == "ResourceApplyGradientDescent")
    alpha = tf.get_static_value(first.inputs[1])
    tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=alpha, delta=tf.random.normal(SHAPE))
    np.testing.assert_array_equal(w, np.full(SHAPE, 3.0))


def training(model: keras.Model) -> Callable[[tf.Tensor, tf.Tensor], Any]:
    return lambda x, y: model.train_step((x, y))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.01, momentum=0.9),
        lambda: keras.optimizers.Adam(use_ema=True, ema_momentum=0.9),
        lambda: keras.optimizers.RMSprop(momentum=0.5),
        lambda: keras.optimizers.Adafactor(),
        lambda: keras.optimizers.AdamW(gradient_accumulation_steps=2),
    ],
)
def test_no_variable_of_a_keras_optimizer_moves(optimizer):
    """Under LMS in a pool; and all have the bits of a step without."""
    x, y = np.random.default_rng(0).random((4, 256), np.float32), np.ones((4, 256), np.float32)
    found = {}
    for pool in (NO_POOL, CPU_POOL):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256), keras.layers.Dense(256)])
        model.compile(optimizer(), "mse", jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        batch = (tf.constant(x), tf.constant(y))

        function = functions.trace(training(model), *(tf.TensorSpec(b.shape) for b in batch))
        engine = Engine(Settings(limit_bytes=1 << 40, planner="off", pool=pool), compute_device="CPU:0")
        prepared = engine.prepare(function, "train")
        large = [v.value for v in (*model.variables, *model.optimizer.variables) if np.prod(v.shape) > 1 << 14]
        before = [address(v) for v in large]
        for _ in range(3):
            prepared.function(*batch)
            assert [address(v) for v in large] == before or pool == NO_POOL
        found[pool] = [bits(v) for v in large]
    assert found[NO_POOL] == found[CPU_POOL]


IN_A_POOL = """
import lms3d
lms3d.limit_memory(96 << 20)
import tensorflow as tf
from lms3d.engine.engine import Engine
from lms3d.engine.request import Settings
from lms3d.engine.step_model.pool import CPU_POOL
from lms3d.engine.tensorflow import functions
w = tf.Variable(tf.ones((5, 1 << 18)))
x = tf.ones(w.shape)
ZEROS = {
    "zeros_like": lambda x: tf.zeros_like(x),
    "reshape": lambda x: tf.reshape(tf.zeros((5 << 18,)), w.shape),
    "cast": lambda x: tf.cast(tf.zeros(w.shape, tf.float16), tf.float32),
    "broadcast": lambda x: tf.broadcast_to(0.0, w.shape),
    "computed": lambda x: tf.zeros(w.shape) + 1.0 - 1.0,
}
engine = Engine(Settings(limit_bytes=96 << 20, planner="off", pool=CPU_POOL), compute_device="CPU:0")
def in_use():
    return tf.config.experimental.get_memory_info("CPU:0")["current"]
kept = []
for name, zeros in ZEROS.items():
    def step(x, again):
        tf.cond(again, lambda: w.assign(zeros(x)), lambda: w.assign(w + x))
    function = functions.trace(step, tf.TensorSpec(w.shape), tf.TensorSpec((), tf.bool))
    prepared = engine.prepare(function, "function")
    w.assign(tf.ones(w.shape))
    before = in_use()
    for again, expected in ((False, 2), (True, 0), (False, 1)):
        prepared.function(x, tf.constant(again))
        assert float(w[0, 0]) == expected, name
    if in_use() - before > 1 << 20:
        kept.append(name)
print("kept:", *kept)
"""


def test_constants_that_are_assigned_are_not_kept(commands):
    """The variable has 5 MiB."""
    done = commands.run(["-c", IN_A_POOL])
    assert done.stdout.splitlines()[-1:] == ["kept:"], done.stdout + done.stderr[-2000:]
