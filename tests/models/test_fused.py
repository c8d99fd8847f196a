"""The compiled block, from normalisation to addition, equals the layers one after the other, and reads no more than it must."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d import models
from lms3d.models import fused
from lms3d.models.layers import ChannelDropout, InstanceNormalization

EPSILON = 1e-3


def block(
    x: np.ndarray, dy: np.ndarray, *, slope: float, dropped: bool, added: bool, dtype: tf.DType = tf.float32
) -> list[np.ndarray]:
    """y, and the gradients of x, gamma, beta and of the addend if there is one, from the compiled operations."""
    kernels = fused.operations()
    assert kernels is not None, "a C++ compiler makes them"
    weights = tf.float64 if dtype == tf.float64 else tf.float32
    gamma, beta = (tf.constant(values, weights) for values in _weights(x.shape[-1]))
    multipliers = tf.constant(_multipliers(x), weights) if dropped else None
    addend = tf.constant(_addend(x), dtype) if added else None
    x, watched = tf.constant(x, dtype), [gamma, beta, *([addend] if added else [])]

    @tf.function(jit_compile=False)
    def run(x: tf.Tensor, dy: tf.Tensor) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch([x, *watched])
            y = fused.activate(
                kernels, x, gamma, beta, epsilon=EPSILON, slope=slope, multipliers=multipliers, addend=addend
            )
        return y, tape.gradient(y, [x, *watched], dy)

    return [tf.cast(t, tf.float64).numpy() for t in tf.nest.flatten(run(x, tf.constant(dy, dtype)))]


def expected(x: np.ndarray, dy: np.ndarray, *, slope: float, dropped: bool, added: bool) -> list[np.ndarray]:
    """The same by TensorFlow's gradients of the textbook's formula, in float64."""
    axes = list(range(1, x.ndim - 1))
    x, dy, addend, gamma, beta = (tf.constant(t, tf.float64) for t in (x, dy, _addend(x), *_weights(x.shape[-1])))
    with tf.GradientTape() as tape:
        tape.watch([x, gamma, beta, addend])
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        y = tf.nn.leaky_relu(gamma * (x - mean) / tf.sqrt(variance + EPSILON) + beta, slope)
        if dropped:
            y *= _multipliers(x).reshape(x.shape[0], *(1 for _ in axes), x.shape[-1])
        y = y + addend if added else y
    watched = [x, gamma, beta, *([addend] if added else [])]
    return [t.numpy() for t in (y, *tape.gradient(y, watched, dy))]


def _weights(channels: int) -> tuple[np.ndarray, np.ndarray]:
    return np.linspace(-0.5, 2.0, channels), np.linspace(-1.0, 1.0, channels)


def _multipliers(x: np.ndarray) -> np.ndarray:
    return np.random.default_rng(3).choice([0.0, 1.25], (x.shape[0], x.shape[-1]))


def _addend(x: np.ndarray) -> np.ndarray:
    return np.random.default_rng(4).normal(size=x.shape).astype(np.float32)


def _numbers(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    """x, with another scale and mean for each sample, and dy."""
    draw = np.random.default_rng(0)
    scale = np.arange(1, shape[0] + 1).reshape(-1, *(1 for _ in shape[1:]))
    return (draw.normal(size=shape) * scale + scale).astype(np.float32), draw.normal(size=shape).astype(np.float32)


SHAPES = [(1, 8, 6, 5, 4), (2, 5, 7, 3, 3), (3, 9, 4, 2), (1, 1, 1, 1, 5), (2, 40, 33, 31, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
def test_the_block_is_the_formula(shape, slope):
    x, dy = _numbers(*shape)
    for dropped, added in itertools.product([False, True], repeat=2):
        how = {"slope": slope, "dropped": dropped, "added": added}
        found, right = block(x, dy, dtype=tf.float64, **how), expected(x, dy, **how)
        for a, b in zip(found, right, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * max(1, np.abs(b).max()))
        for a, b in zip(block(x, dy, **how), right, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * max(1, np.abs(b).max()))


@pytest.mark.parametrize(("dtype", "error"), [(tf.bfloat16, 2.0**-7), (tf.float16, 2.0**-10)])
def test_half_precision_is_rounded_once(dtype, error):
    x, dy = (tf.cast(tf.cast(t, dtype), tf.float64).numpy() for t in _numbers(2, 12, 10, 9, 4))
    how = {"slope": 0.3, "dropped": True, "added": False}
    y, dx, dgamma, dbeta = block(x, dy, dtype=dtype, **how)
    right = expected(x, dy, **how)
    for found, exact in zip((y, dx), right[:2], strict=True):
        assert np.all(np.abs(found - exact) <= error * np.abs(exact) + 1e-5)
    for found, exact in zip((dgamma, dbeta), right[2:], strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


def test_a_slab_has_the_numbers_of_the_whole():
    """Bit by bit, on any number of threads: slabs change nothing."""
    kernels, (x, dy) = fused.operations(), map(tf.constant, _numbers(1, 24, 20, 18, 8))
    gamma, beta = (tf.constant(v, tf.float32) for v in _weights(8))
    rest = [*kernels.lms_merge(*kernels.lms_moments(x), epsilon=[EPSILON]), gamma, beta, tf.zeros((0,))]
    sums = kernels.lms_activate_sums(dy, x, *rest, slope=0.3)
    for first, last in ((0, 1), (3, 5), (7, 24)):
        some = slice(first, last)
        pairs = [
            *zip(kernels.lms_moments(x[:, some]), kernels.lms_moments(x), strict=True),
            *zip(kernels.lms_activate_sums(dy[:, some], x[:, some], *rest, slope=0.3), sums, strict=True),
            (
                kernels.lms_activate(x[:, some], *rest, [dy[:, some]], slope=0.3),
                kernels.lms_activate(x, *rest, [dy], slope=0.3),
            ),
            (
                kernels.lms_activate_grad(dy[:, some], x[:, some], *rest, *sums, slope=0.3),
                kernels.lms_activate_grad(dy, x, *rest, *sums, slope=0.3),
            ),
        ]
        for part, whole in pairs:
            np.testing.assert_array_equal(part, whole[:, some])


def test_a_mean_far_from_zero_costs_nothing_but_its_rounding():
    """The mean has more digits than float32. The part that is rounded off must not be counted twice."""
    x, dy = _numbers(1, 24, 20, 18, 4)
    x = (x + np.float32(3e4)).astype(np.float32)
    how = {"slope": 1.0, "dropped": False, "added": False}
    for found, right in zip(block(x, dy, **how), expected(x, dy, **how), strict=True):
        np.testing.assert_allclose(found, right, rtol=0, atol=2e-6 * max(1, np.abs(right).max()))


def test_an_empty_volume_is_no_crash():
    kernels = fused.operations()
    for shape in ((1, 2, 3, 0, 4), (0, 2, 3, 2, 4), (1, 2, 0, 2, 4)):
        means, variances = kernels.lms_moments(tf.zeros(shape))
        assert means.shape == variances.shape == (*shape[:2], 4)
        of = (*kernels.lms_merge(means, variances, epsilon=[EPSILON]), tf.ones(4), tf.ones(4), tf.zeros((0,)))
        assert kernels.lms_activate(tf.zeros(shape), *of, [], slope=0.3).shape == shape
        sums = kernels.lms_activate_sums(tf.zeros(shape), tf.zeros(shape), *of, slope=0.3)
        np.testing.assert_array_equal(sums[0], np.zeros((*shape[:2], 4)))
        assert kernels.lms_activate_grad(tf.zeros(shape), tf.zeros(shape), *of, *sums, slope=0.3).shape == shape


def test_wrong_shapes_are_errors():
    kernels, x = fused.operations(), tf.zeros((1, 4, 4, 4, 2))
    numbers, vector = tf.zeros((1, 2), tf.float64), tf.zeros((2,))
    right = [numbers, numbers, vector, vector, tf.zeros((0,))]
    for place in range(4):
        wrong = [*right[:place], tf.zeros((3,) if place > 1 else (1, 3), right[place].dtype), *right[place + 1 :]]
        with pytest.raises(tf.errors.InvalidArgumentError, match="another volume"):
            kernels.lms_activate(x, *wrong, [], slope=0.3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="another shape"):
        kernels.lms_activate(x, *right, [tf.zeros((1, 4, 4, 4, 1))], slope=0.3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="another volume"):
        kernels.lms_activate_grad(
            x[:, 1:], x, *right, tf.zeros((1, 4, 2), tf.float64), tf.zeros((1, 4, 2), tf.float64), slope=0.3
        )
    with pytest.raises(tf.errors.InvalidArgumentError):
        kernels.lms_moments(tf.zeros((4, 2)))
    planes = tf.zeros((1, 4, 2), tf.float64)
    with pytest.raises(tf.errors.InvalidArgumentError):
        kernels.lms_merge(planes, planes[:, 1:], epsilon=[EPSILON])
    with pytest.raises(tf.errors.InvalidArgumentError):
        kernels.lms_merge(numbers, numbers, epsilon=[EPSILON])
    with pytest.raises(tf.errors.InvalidArgumentError, match="another volume"):
        kernels.lms_parameter_grad(planes, planes, tf.zeros((1, 3), tf.float64), tf.zeros((0,)))


@pytest.mark.parametrize("batch", [2, None])
def test_the_layer_is_the_same_with_operations_and_without(batch):
    x, dy = map(tf.constant, _numbers(2, 8, 8, 8, 4))
    multipliers, addend = tf.constant(_multipliers(x.numpy()), tf.float32), tf.constant(_addend(x.numpy()))
    specs = [tf.TensorSpec((batch, *t.shape[1:])) for t in (x, multipliers, addend, dy)]

    def results() -> list[tf.Tensor]:
        layer = InstanceNormalization(negative_slope=0.3)

        @tf.function(input_signature=specs, jit_compile=False)
        def run(x: tf.Tensor, multipliers: tf.Tensor, addend: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch([x, addend])
                y = layer(x, multipliers=multipliers, addend=addend)
            return [y, *tape.gradient(y, [x, addend, layer.gamma, layer.beta], dy)]

        layer.build(x.shape)
        return run(x, multipliers, addend, dy)

    compiled = results()
    with fused.plain():
        plain = results()
    for a, b in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def logits_and_gradients(name: str) -> dict[str, np.ndarray]:
    """The logits of a small network in float64, in a training step with dropout, and the gradients of its image and its weights."""
    keras.utils.set_random_seed(1)
    whole = models.build(name, input_shape=(16, 16, 16, 2), filters=(3, 4, 5), dropout=0.3)
    logits = whole.get_layer("probabilities").input  # probabilities are float32 under every policy
    network = keras.Model(whole.inputs, logits)
    for number, variable in enumerate(network.trainable_variables):
        variable.assign(np.random.default_rng(number).normal(0.1, 0.4, variable.shape))
    image, dy = (tf.constant(t, tf.float64) for t in (_numbers(2, 16, 16, 16, 2)[0], _numbers(2, 16, 16, 16, 3)[1]))
    with tf.GradientTape() as tape:
        tape.watch(image)
        y = network(image, training=True)
    gradients = tape.gradient(y, [image, *network.trainable_variables], dy)
    assert {t.dtype for t in (y, *gradients)} == {tf.float64}
    names = [variable.path for variable in network.trainable_variables]
    return {"logits": y.numpy(), **{name: g.numpy() for name, g in zip(("image", *names), gradients, strict=True)}}


def maxima(x: tf.Tensor) -> tf.Tensor:
    """MaxPooling3D(2), for which TensorFlow has no kernel in float64."""
    corners = itertools.product((0, 1), repeat=3)
    return functools.reduce(tf.maximum, [x[:, i::2, j::2, k::2] for i, j, k in corners])


@pytest.mark.parametrize("name", ["isensee2017", "unet3d"])
def test_a_network_and_all_its_gradients_are_the_same_without_operations(name, monkeypatch):
    """In float64, in which nothing but rounding of 1e-16 may differ."""
    monkeypatch.setattr(keras.layers, "MaxPooling3D", lambda _, name: keras.layers.Lambda(maxima, name=name))
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        compiled = logits_and_gradients(name)
        with fused.plain():
            plain = logits_and_gradients(name)
    finally:
        keras.config.set_dtype_policy(before)
    assert compiled.keys() == plain.keys()
    assert any((compiled[of] != plain[of]).any() for of in plain)  # two ways, not one twice
    for of, right in plain.items():
        np.testing.assert_allclose(compiled[of], right, rtol=0, atol=1e-10 * np.abs(right).max(), err_msg=of)


def test_a_layer_that_was_built_plain_stays_so_and_xla_compiles_it():
    x = tf.constant(_numbers(1, 8, 8, 8, 4)[0])
    with fused.plain():
        layer = InstanceNormalization(negative_slope=0.3)
        layer.build(x.shape)
    assert layer.supports_jit
    compiled = tf.function(layer, jit_compile=True)(x)
    layer = InstanceNormalization(negative_slope=0.3)
    np.testing.assert_allclose(layer(x), compiled, rtol=1e-4, atol=1e-5)
    assert not layer.supports_jit  # Keras then leaves XLA off by itself


def test_dropout_gives_its_multipliers_alone():
    x = tf.ones((4, 2, 2, 2, 64))
    layer = ChannelDropout(0.25, applied=False)
    assert layer(x).shape == (4, 64)
    np.testing.assert_array_equal(layer(x), np.ones((4, 64)))
    drawn = layer(x, training=True).numpy()
    assert set(np.unique(drawn)) == {0.0, np.float32(1 / 0.75)}
    assert 0.15 < (drawn == 0).mean() < 0.35
