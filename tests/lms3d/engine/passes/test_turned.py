"""Gradients of a convolution's input as convolutions, on a GPU: the same numbers, to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.passes import manager
from lms3d.engine.passes.base import Target
from lms3d.engine.passes.turned import TurnKernels
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import traced_order

GPU = Target(compute_device="GPU:0")


def gradients(kernel: tuple[int, ...], shape: tuple[int, ...], **convolution):
    """The traced gradients of input and kernel of a convolution, and an input."""
    weights = tf.Variable(tf.random.stateless_normal(kernel, (1, 2), dtype=tf.float64))
    options = {"strides": [1] * 5, "padding": "SAME", **convolution}

    def step(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.conv3d(tf.sin(x), weights, **options)
            loss = tf.reduce_sum(tf.cos(y) * y)
        return tape.gradient(loss, [x, weights])

    return functions.trace(step, tf.TensorSpec(shape, tf.float64)), tf.random.stateless_normal(
        shape, (3, 4), dtype=tf.float64
    )


def types(function) -> list[str]:
    return [op.type for op in traced_order(function.graph)]


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        ((3, 3, 3, 5, 4), (2, 6, 7, 8, 5)),
        ((1, 5, 3, 16, 20), (1, 4, 9, 5, 16)),
        ((1, 1, 1, 2, 3), (1, 4, 4, 4, 2)),
    ],
)
def test_the_gradient_is_the_same(kernel, shape):
    function, x = gradients(kernel, shape)
    before = [one.numpy() for one in functions.make_function(function)(x)]
    function, _ = gradients(kernel, shape)
    assert manager.run(function, [TurnKernels(GPU)]) == ("turned",)
    assert "Conv3DBackpropInputV2" not in types(function)
    assert types(function).count("Conv3D") == 2
    for one, other in zip(functions.make_function(function)(x), before, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12 * abs(other).max())
    assert manager.run(function, [TurnKernels(GPU)]) == ()


def test_a_returned_gradient_is_turned_too():
    weights = tf.Variable(tf.random.stateless_normal((3, 3, 3, 2, 3), (1, 2)))

    def step(dy: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.Conv3DBackpropInputV2(
            input_sizes=[1, 4, 4, 4, 2], filter=weights, out_backprop=dy, strides=[1] * 5, padding="SAME"
        )

    dy = tf.random.stateless_normal((1, 4, 4, 4, 3), (5, 6))
    expected, function = step(dy), functions.trace(step, tf.TensorSpec(dy.shape))
    assert manager.run(function, [TurnKernels(GPU)]) == ("turned",)
    np.testing.assert_allclose(functions.make_function(function)(dy), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "convolution"),
    [
        ((3, 3, 3, tuning.TURNED_CHANNELS + 1, 4), {}),  # channels enough for cuDNN's kernel
        ((3, 3, 3, 4, 4), {"strides": [1, 2, 2, 2, 1]}),
        ((2, 2, 2, 4, 4), {}),  # SAME pads one side alone
        ((3, 3, 3, 4, 4), {"padding": "VALID"}),
    ],
)
def test_other_gradients_stay(kernel, convolution):
    function, _ = gradients(kernel, (1, 6, 6, 6, kernel[-2]), **convolution)
    before = types(function)
    assert manager.run(function, [TurnKernels(GPU)]) == ()
    assert types(function) == before


def test_a_processor_keeps_its_own_gradients():
    assert not TurnKernels(Target()).applies
    assert TurnKernels(GPU).applies
