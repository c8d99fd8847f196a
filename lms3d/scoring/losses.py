"""Losses for segmentation with one disjoint label per channel, as pure functions of (truth, probabilities).

Both arguments are (B, ..., C): truth, 0 or 1 in any dtype; probabilities in 0..1. Each loss is one float32 scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

SMOOTHING = 1e-5
CLIPPING = 1e-7


@keras.saving.register_keras_serializable(package="lms3d")
def dice_loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Minus the mean over batch and channel of (2 sum(y p) + 1e-5) / (sum y + sum p + 1e-5), sums over the voxels.

    From -1 (perfect) to 0. The loss of the LMS case study's model (isensee2017); soft Dice after Milletari et al.,
    arXiv:1606.04797, without their squares.
    """
    return -tf.reduce_mean(soft_dice(tf.convert_to_tensor(y_true), tf.cast(y_pred, tf.float32)))


@keras.saving.register_keras_serializable(package="lms3d")
def dice_cross_entropy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """`dice_loss` plus the mean binary cross-entropy, -mean(y log p + (1 - y) log(1 - p)).

    The sum that nnU-Net uses (Isensee et al., arXiv:1809.10486), with sigmoids in place of its softmax.
    """
    return dice_loss(y_true, y_pred) + cross_entropy(tf.convert_to_tensor(y_true), tf.cast(y_pred, tf.float32))


HEAD_WEIGHTS = (1.0, 0.5, 0.25)
"""The weights of the summed output and of the deeper heads, each of which has half the resolution of the one before. They halve as
nnU-Net's do."""


def of_each_head(
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], channels: int
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """A loss for deep supervision: the mean of `loss` over the heads, weighted by HEAD_WEIGHTS.

    It takes the truth, (B, ..., channels), and the probabilities of all heads, (B, ..., channels * heads).
    """

    def mean(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        heads = tf.split(y_pred, y_pred.shape[-1] // channels, axis=-1)
        weights = HEAD_WEIGHTS[: len(heads)]
        return tf.add_n([w * loss(y_true, head) for w, head in zip(weights, heads, strict=True)]) / sum(weights)

    return mean


@tf.custom_gradient
def soft_dice(y: tf.Tensor, p: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """(B, ..., C), (B, ..., C) -> (B, C). The gradient is written out: it keeps y in its own type, not a float copy."""
    voxels = list(range(1, y.shape.rank - 1))
    overlap = 2 * tf.reduce_sum(tf.cast(y, p.dtype) * p, voxels, keepdims=True) + SMOOTHING
    total = tf.reduce_sum(tf.cast(y, p.dtype), voxels, keepdims=True) + tf.reduce_sum(p, voxels, keepdims=True)
    total += SMOOTHING

    def backward(upstream: tf.Tensor) -> tuple[None, tf.Tensor]:
        upstream = tf.reshape(upstream, tf.shape(total))
        inside, everywhere = 2 * upstream / total, upstream * overlap / (total * total)
        return None, tf.cast(y, p.dtype) * inside - everywhere

    return tf.squeeze(overlap / total, voxels), backward


@tf.custom_gradient
def cross_entropy(y: tf.Tensor, p: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The mean binary cross-entropy, (B, ..., C), (B, ..., C) -> scalar. For y in {0, 1} it is -log of the probability of the
    truth."""

    def backward(upstream: tf.Tensor) -> tuple[None, tf.Tensor]:
        step = upstream / tf.cast(tf.size(p), p.dtype)
        return None, tf.where(tf.cast(y, tf.bool), -step, step) / probability_of_truth(y, p)

    return -tf.reduce_mean(tf.math.log(probability_of_truth(y, p))), backward


def probability_of_truth(y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
    """p where y is 1 and 1 - p where it is 0, clipped for a logarithm: (B, ..., C), (B, ..., C) -> (B, ..., C)."""
    return tf.clip_by_value(tf.where(tf.cast(y, tf.bool), p, 1 - p), CLIPPING, 1.0)
