"""The passes that every step gets: each edits a step that needs it, once, and changes no bit."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lms3d.engine.passes import NORMALISING, manager
from lms3d.engine.passes.base import Target
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture
from tests.lms3d.engine.traced import same_bits

SHAPE = (2, 32, 32, 32)
POOLED, GPU = Target(pooled=True), Target(compute_device="GPU:0")
TARGETS = {"turned": GPU}  # a processor keeps its own gradients


@tf.custom_gradient
def doubled(x: tf.Tensor, y: tf.Tensor):
    """Leaves an identity of several tensors behind."""
    return (2 * x, 2 * y), lambda dx, dy: (2 * dx, 2 * dy)


def training(kernel: tf.Variable, bias: tf.Variable, mean: tf.Variable):
    """A step that each pass has an edit for."""

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y, z = doubled(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias), x)
            a, b = tf.raw_ops.ShapeN(input=[y, z])
            loss = tf.reduce_sum(tf.nn.conv2d(y * z, kernel, 1, "SAME")) + tf.cast(tf.reduce_sum(a - b), tf.float32)
            volume = tf.reshape(bias, (1, 2, 2, 2, 4))
            first, second = tf.unstack(y)
            loss += tf.reduce_sum(first * second)
            loss += tf.reduce_sum(tf.nn.conv3d(volume, tf.ones((1, 1, 3, 4, 2)), [1] * 5, "SAME"))
        dk, db = tape.gradient(loss, [kernel, bias])
        kernel.assign_sub(0.01 * dk)
        bias.assign_sub(0.01 * db)
        mean.assign(0.9 * mean + 0.1 * x)
        return loss

    return step


def variables() -> list[tf.Variable]:
    shapes = ((3, 3, 32, 32), (32,), SHAPE)
    return [tf.Variable(tf.random.stateless_normal(shape, (i, 7))) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("name", NORMALISING.names)
def test_a_pass_that_does_not_keep_its_promise_is_found(name):
    kept = variables()
    function = functions.trace(training(*kept), tf.TensorSpec(SHAPE))
    broken = type("Broken", (NORMALISING[name],), {"edit": lambda self, graph: 1})
    with pytest.raises(RuntimeError, match=f"pass {name}: .*; please report this graph"):
        manager.run(function, [broken(POOLED)])
    assert manager.run(function, [NORMALISING[name](TARGETS.get(name, POOLED))]) == (name,)


def test_each_pass_edits_a_step_once_and_changes_no_bit():
    x, results = tf.random.stateless_normal(SHAPE, (1, 2)), []
    for edited in (False, True):
        kept = variables()
        function = functions.trace(training(*kept), tf.TensorSpec(SHAPE))
        if edited:
            assert manager.normalise(function, POOLED) == tuple(n for n in NORMALISING.names if n not in TARGETS)
            before = capture(function)
            assert manager.normalise(function, POOLED) == ()
            assert capture(function) == before
        run = functions.make_function(function)
        results.append([run(x), run(x), *kept])
    same_bits(*results)


def test_values_are_written_in_place_on_a_pooled_cpu_alone():
    function = functions.trace(training(*variables()), tf.TensorSpec(SHAPE))
    assert "assignments" not in manager.normalise(function, Target())


@pytest.mark.parametrize("name", NORMALISING.names)
def test_a_pass_has_the_name_of_its_line(name):
    assert NORMALISING[name].name == name
