"""Fused normalisation on slabs: errors against float64 are no larger than the whole op's, which knows float32 only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lms3d.engine.slabs.cases import both, marked, spaces, weights

R = tf.raw_ops
EPSILON = 1e-3
FREE = 2e-6
"""What rounding may cost, relative to the largest number."""


def _function(training: bool, factor: float, given: bool = True) -> Any:
    def function(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> Any:
        none = tf.zeros(0)
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            made = R.FusedBatchNormV3(
                x=marked(x), scale=scale, offset=offset, mean=mean if given else none, variance=variance if given else none,
                epsilon=EPSILON, exponential_avg_factor=factor, is_training=training,
                data_format="NDHWC" if len(x.shape) == 5 else "NHWC",
            )  # fmt: skip
            y = tf.ensure_shape(made.y, x.shape)
            loss = tf.reduce_sum(y * tf.cast(weights(x), y.dtype))
        return y, made.batch_mean, made.batch_variance, *tape.gradient(loss, [x, scale, offset])

    return function


def _reference(
    training: bool, factor: float, x: Any, scale: Any, offset: Any, mean: Any, variance: Any
) -> list[np.ndarray]:
    """By the definition, in float64."""
    x, scale, offset, mean, variance = (tf.constant(a, tf.float64) for a in (x, scale, offset, mean, variance))
    axes, n = list(range(len(x.shape) - 1)), np.prod(x.shape[:-1])
    with tf.GradientTape() as tape:
        tape.watch([x, scale, offset])
        used = tf.nn.moments(x, axes) if training else (mean, variance)
        y = scale * (x - used[0]) / tf.sqrt(used[1] + EPSILON) + offset
        loss = tf.reduce_sum(y * weights(x))
    running = (mean, variance)
    if training:
        unbiased = (used[0], used[1] * (n / (n - 1)))
        running = tuple((1 - factor) * a + factor * b for a, b in zip(running, unbiased, strict=True))
    return [t.numpy() for t in (y, *running, *tape.gradient(loss, [x, scale, offset]))]


def _arrays(space: Any) -> list[np.ndarray]:
    rng, channels = np.random.default_rng(0), space.channels
    x = rng.normal(3, 2, space.shape)
    return [a.astype(np.float32) for a in (x, *rng.uniform(0.5, 2, (4, channels)))]


@given(st.integers(2, 3).flatmap(spaces), st.booleans(), st.sampled_from([1.0, 0.1]))
@settings(max_examples=8, deadline=None)
def test_outputs_and_gradients_are_as_close_to_float64_as_the_whole_ones(space, training, factor):
    arrays = _arrays(space)
    whole, cut, program, gone = both(_function(training, factor), arrays, space.slabs)
    assert {"FusedBatchNormV3", "FusedBatchNormGradV3"} <= gone
    assert not program.joined
    for a, b, exact in zip(whole, cut, _reference(training, factor, *arrays), strict=True):
        scale = max(1.0, np.abs(exact).max())
        assert np.abs(b - exact).max() <= 2 * np.abs(a - exact).max() + FREE * scale


def test_the_statistics_of_a_large_tensor_become_better():
    """TensorFlow's kernel adds up in float32, one number after the other."""
    rng = np.random.default_rng(0)
    x = rng.normal(5, 1, (1, 64, 64, 64, 2)).astype(np.float32)
    ones = np.ones(2, np.float32)
    arrays = [x, ones, 0 * ones, ones, ones]
    whole, cut, *_ = both(_function(True, 1.0, given=False), arrays, {0: 8})
    exact = x.astype(np.float64).reshape(-1, 2).var(0, ddof=1)
    assert np.abs(cut[2] - exact).max() < np.abs(whole[2] - exact).max() / 2


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_half_precision(dtype):
    function = _function(True, 1.0, given=False)

    def halved(x: tf.Tensor, *rest: tf.Tensor) -> Any:
        return function(tf.cast(x, dtype), *rest)

    x = np.random.default_rng(0).normal(size=(2, 9, 4, 4, 3)).astype(np.float32)
    ones = np.ones(3, np.float32)
    whole, cut, *_ = both(halved, [x, ones, 0 * ones, ones, ones], {0: 3})
    for a, b in zip(whole, cut, strict=True):
        np.testing.assert_allclose(b, a, atol=0.03 * max(1.0, np.abs(a).max()))
