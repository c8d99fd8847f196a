"""Small numbers that are computed twice: one op stands for equal ones, and no bit changes."""

from __future__ import annotations

from collections import Counter

import keras
import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.passes import manager
from lms3d.engine.passes.base import Target
from lms3d.engine.passes.repeats import ComputeOnce, compute_once
from lms3d.engine.passes.slicing import Slice
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import traced_order
from lms3d.keras_step.attachment import trace_step

NUMBER, LARGE = tf.TensorSpec((), tf.float32), tuning.SHARED_BYTES // 4 + 1


def counted(function) -> Counter[str]:
    return Counter(op.type for op in traced_order(function.graph))


def test_an_optimiser_computes_its_powers_once_for_all_variables():
    model = keras.Sequential([keras.layers.Dense(3) for _ in range(5)])
    model.build((2, 3))
    model.compile(keras.optimizers.Adam(), loss="mse", jit_compile=False)
    function = trace_step(model, "train", (tf.TensorSpec((2, 3)), tf.TensorSpec((2, 3))))
    before = counted(function)
    assert before["Pow"] == 2 * len(model.trainable_variables)
    assert manager.run(function, [ComputeOnce(Target())]) == ("repeats",)
    assert counted(function)["Pow"] == 2
    assert counted(function)["AssignSubVariableOp"] == before["AssignSubVariableOp"]
    assert manager.run(function, [ComputeOnce(Target())]) == ()


def test_trained_weights_have_the_same_bits():
    def trained(edited: bool) -> list[tf.Tensor]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)])
        model.build((3, 4))
        model.compile(keras.optimizers.AdamW(0.01, clipnorm=1.0), loss="mse", jit_compile=False)
        function = trace_step(model, "train", (tf.TensorSpec((3, 4)), tf.TensorSpec((3, 2))))
        assert (compute_once(function.graph) > 0) if edited else True
        run = functions.make_function(function)
        for seed in range(4):
            run((tf.random.stateless_normal((3, 4), (seed, 1)), tf.random.stateless_normal((3, 2), (seed, 2))))
        return [tf.identity(v) for v in (*model.variables, *model.optimizer.variables)]

    for one, other in zip(trained(True), trained(False), strict=True):
        assert (one.numpy() == other.numpy()).all()


def test_a_step_in_slabs_is_left_alone():
    """Neighbours cut the same planes out again, so that nobody keeps them meanwhile."""
    kernel = tf.Variable(tf.random.stateless_normal((3, 3, 1, 1), (1, 2)))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.conv2d(tf.nn.conv2d(x, kernel, 1, "SAME"), kernel, 1, "SAME"))
        return tape.gradient(loss, kernel)

    function = functions.trace(step, tf.TensorSpec((1, 16, 4, 1)))
    compute_once(function.graph)
    assert manager.run(function, [Slice({0: 4})]) == ("slice",)
    assert manager.run(function, [ComputeOnce(Target())]) == ()


def test_a_read_after_an_update_is_not_the_read_before_it():
    kept = tf.Variable(1.0)

    def step(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first, again = kept + x, kept + x
        kept.assign_add(x)
        later, once_more = kept + x, kept + x
        return first - again, later - once_more, later - first

    function = functions.trace(step, NUMBER)
    assert counted(function)["ReadVariableOp"] == 4
    compute_once(function.graph)
    assert counted(function)["AddV2"] == 2
    assert [float(one) for one in functions.make_function(function)(tf.constant(3.0))] == [0.0, 0.0, 3.0]


@pytest.mark.parametrize(
    "step",
    [
        lambda x: (tf.random.uniform(()), tf.random.uniform(())),  # draws
        lambda x: (x + 1, x + 2),  # other numbers
        lambda x: (tf.cast(x, tf.float64), tf.cast(x, tf.int32)),  # other attributes
        lambda x: (
            tf.fill((LARGE,), x),
            tf.fill((LARGE,), x),
        ),  # large: meant to save memory
    ],
)
def test_what_is_no_repetition_stays(step):
    function = functions.trace(lambda x: [one * 1 for one in map(tf.convert_to_tensor, step(x))], NUMBER)
    kinds = {"RandomUniform", "AddV2", "Cast", "Fill"}
    before = {kind: n for kind, n in counted(function).items() if kind in kinds}
    assert max(before.values()) == 2
    compute_once(function.graph)
    assert {kind: n for kind, n in counted(function).items() if kind in kinds} == before


def test_ops_with_gradients_of_their_own_stay():
    @tf.RegisterGradient("NoneOfIt")
    def none(op: tf.Operation, dy: tf.Tensor) -> tf.Tensor:
        return 0 * dy

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.compat.v1.get_default_graph().gradient_override_map({"Tanh": "NoneOfIt"}):
            first = tf.tanh(x)
        return first + tf.tanh(x)

    function = functions.trace(step, NUMBER)
    compute_once(function.graph)
    assert counted(function)["Tanh"] == 2
