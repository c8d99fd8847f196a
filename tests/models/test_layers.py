"""The layers give what stock Keras gives, with fewer full-size tensors."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.models import fused, layers
from lms3d.models.layers import ChannelDropout, InstanceNormalization, JoinedConv3D, NearestUpSampling3D


def noise(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).normal(2.0, 3.0, shape).astype(np.float32))


def value_and_gradients(layer: keras.Layer, x: tf.Tensor, signature: tf.TensorSpec):
    """Output, and gradients of a weighted sum of it with respect to the input and all weights, in a traced function."""

    @tf.function(input_signature=[signature])
    def run(x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            loss = tf.reduce_sum(tf.sin(y))
        return y, tape.gradient(loss, [x, *layer.trainable_variables])

    return run(x)


@pytest.mark.parametrize("shape", [(1, 4, 6, 5, 3), (2, 4, 6, 5, 3), (3, 7, 8, 2)])
@pytest.mark.parametrize("batch_known", [True, False])
def test_instance_norm_is_group_norm_with_one_channel_per_group(shape, batch_known):
    x = noise(*shape)
    ours, stock = InstanceNormalization(epsilon=1e-3), keras.layers.GroupNormalization(groups=-1, epsilon=1e-3)
    for layer in (ours, stock):
        layer.build((None, *shape[1:]))
        layer.gamma.assign(tf.range(1.0, shape[-1] + 1))
        layer.beta.assign(tf.range(shape[-1], dtype=tf.float32) - 1)
    spec = tf.TensorSpec(shape if batch_known else (None, *shape[1:]))
    value, gradients = value_and_gradients(ours, x, spec)
    expected, expected_gradients = value_and_gradients(stock, x, spec)
    np.testing.assert_allclose(value, expected, atol=2e-5)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(found, wanted, atol=3e-4, rtol=1e-4)


def test_instance_norm_of_a_table():
    x = tf.constant([1.0, 3.0, 5.0, 7.0], shape=(1, 1, 2, 2, 1))  # mean 4, variance 5
    y = InstanceNormalization(epsilon=4.0)(x)  # sqrt(5 + 4) = 3
    np.testing.assert_allclose(tf.reshape(y, [-1]), [-1, -1 / 3, 1 / 3, 1], atol=1e-6)


def test_instance_norm_refuses_a_vector():
    with pytest.raises(ValueError, match=r"expected \(B, H, W, C\) or \(B, D, H, W, C\)"):
        InstanceNormalization()(noise(2, 3))


@settings(max_examples=15, deadline=None)
@given(
    st.tuples(*[st.integers(1, 3)] + [st.integers(1, 5)] * 3 + [st.integers(1, 4)]),
    st.sampled_from([(2, 2, 2), (2, 2, 1), (1, 2, 1)]),
)
def test_up_sampling_is_bit_identical_to_keras(shape, factors):
    x = noise(*shape)
    np.testing.assert_array_equal(NearestUpSampling3D(factors)(x), keras.layers.UpSampling3D(factors)(x))


@pytest.mark.parametrize("known", [(2, 3, 4, 2, 5), (None, None, None, None, 5)])
def test_up_sampling_gradient_sums_each_block(known):
    x = noise(2, 3, 4, 2, 5)
    _, (gradient,) = value_and_gradients(NearestUpSampling3D(), x, tf.TensorSpec(known))
    np.testing.assert_allclose(gradient, 8 * np.cos(x), rtol=1e-5, atol=1e-5)


def test_both_ways_to_sum_blocks_agree():
    dy = noise(2, 4, 6, 2, 3)
    blocks = tf.reshape(dy, (2, 2, 2, 3, 2, 1, 2, 3)).numpy().sum(axis=(2, 4, 6))
    np.testing.assert_allclose(layers.block_sums_by_pooling(dy), blocks, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layers.block_sums_by_axis(dy), blocks, rtol=1e-5, atol=1e-5)
    flat = tf.reshape(dy, (2, 2, 2, 6, 2, 3)).numpy().sum(axis=2).reshape(2, 2, 6, 1, 2, 3).sum(axis=4)
    for sums in (layers.block_sums_by_pooling, layers.block_sums_by_axis):
        np.testing.assert_allclose(sums(dy, (2, 1, 2)), flat, rtol=1e-5, atol=1e-5)


def peak_of(function: Callable[..., tf.Tensor], *arguments: tf.Tensor) -> int:
    """The bytes that one call adds to the memory in use, once everything is traced and warm."""
    function(*arguments)
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    result = function(*arguments)
    peak_bytes = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
    del result
    return peak_bytes


def up_sampling_peaks() -> tuple[float, float]:
    """Forward and backward, in units of the up-sampled tensor."""
    x = noise(1, 16, 16, 16, 32)  # powers of two: the allocator counts rounded sizes
    result_bytes = 8 * x.shape.num_elements() * 4

    @tf.function
    def backward(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers.upsample(x)
        return tape.gradient(y, x, dy)

    forward_bytes = peak_of(tf.function(layers.upsample), x)
    return forward_bytes / result_bytes, peak_of(backward, x, tf.ones((1, 32, 32, 32, 32))) / result_bytes


def test_up_sampling_makes_no_other_tensor_of_the_results_size(in_fresh_process):
    forward, backward = in_fresh_process(up_sampling_peaks)
    assert 1 <= forward < 1.05
    assert 0.125 <= backward < 0.3


RAISED = [(True,), (False, False), (False, True), (True, False, True)]


def joined_inputs(raised: tuple[bool, ...], factors: layers.Triple = (2, 2, 2)) -> list[tf.Tensor]:
    """A tensor of (2, 4, 6, 2, C) for each input, so many times smaller for raised ones, C different for each."""
    small = [size // factor for size, factor in zip((4, 6, 2), factors, strict=True)]
    return [noise(2, *(small if up else (4, 6, 2)), 2 + i) for i, up in enumerate(raised)]


CUBES = (3, 3, 3), (2, 2, 2)
SIZES = [((3, 3, 1), (2, 2, 1)), ((1, 3, 3), (2, 1, 2))]  # kernels, factors


@pytest.mark.parametrize(
    ("raised", "known", "kernel", "factors"),
    [
        *((raised, known, *CUBES) for raised in RAISED for known in (True, False)),
        *(((False, True), True, *sizes) for sizes in SIZES),
    ],
)
def test_joined_convolution_is_that_of_the_concatenation(raised, known, kernel, factors):
    layer = JoinedConv3D(5, raised, kernel_size=kernel, factors=factors)
    stock = keras.layers.Conv3D(5, kernel, padding="same")
    inputs = joined_inputs(raised, factors)

    def concatenated(*parts: tf.Tensor) -> tf.Tensor:
        return tf.concat(
            [layers.upsample(x, factors) if up else x for x, up in zip(parts, raised, strict=True)], axis=-1
        )

    layer.build([x.shape for x in inputs])
    stock.build(concatenated(*inputs).shape)
    assert [w.shape for w in layer.weights] == [w.shape for w in stock.weights]
    stock.set_weights([w + 0.1 for w in layer.get_weights()])
    layer.set_weights(stock.get_weights())
    signature = [tf.TensorSpec(x.shape if known else (*[None] * 4, x.shape[-1])) for x in inputs]

    @tf.function(input_signature=signature)
    def ours(*parts):
        with tf.GradientTape() as tape:
            tape.watch(parts)
            y = layer(list(parts))
            loss = tf.reduce_sum(tf.sin(y / 50))
        return y, tape.gradient(loss, [*parts, *layer.trainable_variables])

    @tf.function(input_signature=signature)
    def theirs(*parts):
        with tf.GradientTape() as tape:
            tape.watch(parts)
            y = stock(concatenated(*parts))
            loss = tf.reduce_sum(tf.sin(y / 50))
        return y, tape.gradient(loss, [*parts, *stock.trainable_variables])

    for found, expected in zip(tf.nest.flatten(ours(*inputs)), tf.nest.flatten(theirs(*inputs)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_joined_convolution_makes_neither_the_concatenation_nor_the_up_sampled_tensor():
    layer = JoinedConv3D(2, (False, True))
    layer.build([(1, 8, 8, 8, 4), (1, 4, 4, 4, 6)])
    specs = [tf.TensorSpec((1, 8, 8, 8, 4)), tf.TensorSpec((1, 4, 4, 4, 6))]

    @tf.function(input_signature=specs)
    def run(skip, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer([skip, x]) ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    made = {t.shape.num_elements() for op in run.get_concrete_function().graph.get_operations() for t in op.outputs}
    assert 8**3 * 2 in made  # the result
    assert 8**3 * 4 in made  # an input
    assert not made & {8**3 * 6, 8**3 * 10}


def test_joined_convolution_says_its_shape_and_refuses_a_wrong_number_of_inputs():
    layer = JoinedConv3D(7, (True, False), name="join")
    shapes = [(None, 2, None, 4, 3), (None, 4, None, 8, 1)]
    assert layer.compute_output_shape(shapes) == (None, 4, None, 8, 7)
    with pytest.raises(ValueError, match="join: expected 2 inputs, received 1"):
        layer.build((1, 2, 2, 2, 3))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_joined_convolution_computes_in_half(dtype):
    layer = JoinedConv3D(3, (False, True), dtype=f"mixed_{dtype}")
    y = layer(joined_inputs((False, True)))
    assert (y.dtype, layer.kernel.dtype) == (getattr(tf, dtype), "float32")


def test_channel_dropout_drops_whole_channels_and_keeps_the_mean():
    layer = ChannelDropout(0.25, seed=1)
    y = layer(tf.ones((8, 2, 2, 2, 500)), training=True).numpy()
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
    assert (y == y[:, :1, :1, :1]).all()
    assert abs(y.mean() - 1) < 0.05
    x = noise(1, 2, 2, 2, 3)
    np.testing.assert_array_equal(layer(x, training=False), x)


def test_channel_dropout_refuses_a_rate_of_one():
    with pytest.raises(ValueError, match=r"rate must be at least 0 and below 1, received 1"):
        ChannelDropout(1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_layers_compute_in_half_and_keep_statistics_in_float32(dtype):
    x = noise(1, 4, 4, 4, 3)
    norm = InstanceNormalization(dtype=f"mixed_{dtype}")
    y = norm(x)
    assert (y.dtype, norm.gamma.dtype, norm.beta.dtype) == (getattr(tf, dtype), "float32", "float32")
    np.testing.assert_allclose(tf.cast(y, tf.float32), InstanceNormalization()(x), atol=0.03)
    half = tf.cast(x, dtype)
    value, (gradient,) = value_and_gradients(NearestUpSampling3D(dtype=dtype), half, tf.TensorSpec(x.shape, half.dtype))
    assert value.dtype == gradient.dtype == half.dtype


def test_layers_are_traced_for_a_gpu_where_there_is_none():
    def types() -> set[str]:
        function = tf.function(InstanceNormalization(), jit_compile=False)
        return {op.type for op in function.get_concrete_function(tf.TensorSpec((1, 4, 4, 4, 2))).graph.get_operations()}

    assert layers.on_gpu() == bool(tf.config.list_physical_devices("GPU"))
    with layers.traced_for_gpu():
        assert "LmsMoments" in types()
    with fused.plain():
        here = types()
        with layers.traced_for_gpu():
            elsewhere = types()
    assert "Sum" not in elsewhere  # one fused op
    assert "FusedBatchNormV3" in elsewhere
    assert ("Sum" in here) != layers.on_gpu()
