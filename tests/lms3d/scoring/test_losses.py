"""Losses against tables worked out by hand, and their written-out gradients against automatic ones."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.scoring import losses


def volume(*channels: list[float]) -> np.ndarray:
    """Channels of 4 voxels -> (1, 1, 2, 2, C)."""
    return np.array(channels, np.float32).T.reshape(1, 1, 2, 2, len(channels))


@pytest.mark.parametrize(
    ("truth", "probability", "dice"),
    [
        ([1, 1, 0, 0], [1, 1, 0, 0], 1.0),
        ([1, 1, 0, 0], [0, 0, 1, 1], 1e-5 / (4 + 1e-5)),
        ([1, 1, 0, 0], [0.5, 0, 0.5, 0], (2 * 0.5 + 1e-5) / (2 + 1 + 1e-5)),
        ([0, 0, 0, 0], [0, 0, 0, 0], 1.0),
        ([0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], 1e-5 / (1 + 1e-5)),
        ([1, 1, 1, 1], [0.5, 0.5, 0.5, 0.5], (4 + 1e-5) / (6 + 1e-5)),
    ],
)
def test_dice_loss_table(truth, probability, dice):
    assert losses.dice_loss(volume(truth), volume(probability)).numpy() == pytest.approx(-dice, rel=1e-5)


def test_dice_loss_is_the_mean_over_batch_and_channel():
    truth = np.concatenate([volume([1, 0, 0, 0], [0, 0, 0, 0]), volume([1, 1, 0, 0], [1, 1, 1, 1])])
    found = np.concatenate([volume([1, 0, 0, 0], [1, 0, 0, 0]), volume([1, 0, 0, 0], [1, 1, 1, 1])])
    assert losses.dice_loss(truth, found).numpy() == pytest.approx(-(1 + 1e-5 + 2 / 3 + 1) / 4, rel=1e-4)


def test_truth_may_be_uint8():
    truth, found = volume([1, 0, 0, 1]), volume([0.7, 0.2, 0.1, 0.4])
    for loss in (losses.dice_loss, losses.dice_cross_entropy):
        assert loss(truth.astype(np.uint8), found).numpy() == loss(truth, found).numpy()


def test_cross_entropy_is_added():
    truth, found = volume([1, 0, 0, 1]), volume([0.5, 0.25, 0.5, 1.0])
    entropy = -(2 * math.log(0.5) + math.log(0.75) + math.log(1.0)) / 4
    expected = losses.dice_loss(truth, found).numpy() + entropy
    assert losses.dice_cross_entropy(truth, found).numpy() == pytest.approx(expected, rel=1e-5)


def plain_dice_loss(y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
    y = tf.cast(y, tf.float32)
    overlap, total = tf.reduce_sum(y * p, (1, 2, 3)), tf.reduce_sum(y, (1, 2, 3)) + tf.reduce_sum(p, (1, 2, 3))
    return -tf.reduce_mean((2 * overlap + 1e-5) / (total + 1e-5))


def plain_dice_cross_entropy(y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
    return plain_dice_loss(y, p) + tf.reduce_mean(keras.losses.binary_crossentropy(tf.cast(y, tf.float32), p))


@pytest.mark.parametrize(
    ("loss", "plain"),
    [(losses.dice_loss, plain_dice_loss), (losses.dice_cross_entropy, plain_dice_cross_entropy)],
)
@pytest.mark.parametrize("batch", [2, None])
def test_gradients_are_those_of_the_formula(loss, plain, batch):
    random = np.random.default_rng(0)
    truth = tf.constant(random.integers(0, 2, (2, 3, 4, 5, 3)), tf.uint8)
    found = tf.constant(random.uniform(0.05, 0.95, (2, 3, 4, 5, 3)), tf.float32)
    shape = (batch, 3, 4, 5, 3)

    def gradient_of(function):
        @tf.function(input_signature=[tf.TensorSpec(shape, tf.uint8), tf.TensorSpec(shape, tf.float32)])
        def run(y, p):
            with tf.GradientTape() as tape:
                tape.watch(p)
                value = 3 * function(y, p)
            return value, tape.gradient(value, p)

        return run(truth, found)

    value, gradient = gradient_of(loss)
    expected, expected_gradient = gradient_of(plain)
    assert value.numpy() == pytest.approx(expected.numpy(), rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-8)


def test_each_head_has_its_loss_by_halving_weights():
    random = np.random.default_rng(0)
    y = tf.constant(random.integers(0, 2, (1, 4, 4, 4, 2)).astype(np.uint8))
    p = tf.constant(random.random((1, 4, 4, 4, 6)).astype(np.float32))
    each = [float(losses.dice_loss(y, p[..., 2 * k : 2 * k + 2])) for k in range(3)]
    expected = (each[0] + each[1] / 2 + each[2] / 4) / 1.75
    assert float(losses.of_each_head(losses.dice_loss, 2)(y, p)) == pytest.approx(expected, rel=1e-6)
    assert float(losses.of_each_head(losses.dice_loss, 6)(tf.zeros_like(p), p)) == pytest.approx(
        float(losses.dice_loss(tf.zeros_like(p), p))
    )
