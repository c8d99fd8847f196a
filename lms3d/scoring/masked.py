"""Losses for any data set: classes of which one is background, or regions; voxels that nobody has labelled do not count.

Both arguments of a loss are (B, ..., C): truth, 0 or 1 or `ignored`, uint8; probabilities in 0..1. It is one float32 scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lms3d.scoring import losses

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def loss_of(name: str, *, classes: bool, ignored: int | None = None) -> Loss:
    """The loss called `name`: "dice" or "dice_cross_entropy".

    classes: whether the channels are classes that exclude each other, the first of which is background. Then Dice is the mean over
    the others, and the cross-entropy that of a softmax, as in nnU-Net (Isensee et al., Nature Methods 2021). If not, each channel
    is a region of its own. ignored: the value of voxels that do not count; None: there are none.
    """

    def loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        y, p, known = known_part(y_true, y_pred, ignored)
        dice = losses.soft_dice(y, p)
        value = -tf.reduce_mean(dice[:, 1:] if classes else dice)
        if name == "dice":
            return value
        return value + (categorical_cross_entropy(y, p) if classes else _binary(y, p, known))

    return loss


def known_part(
    y_true: tf.Tensor, y_pred: tf.Tensor, ignored: int | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """(y, p, known): the truth and the probabilities, both 0 in voxels that do not count, and the mask (B, ..., C) of all others;
    None if every voxel counts."""
    y, p = tf.convert_to_tensor(y_true), tf.cast(y_pred, tf.float32)
    if ignored is None:
        return y, p, None
    known = tf.not_equal(y, tf.cast(ignored, y.dtype))
    return tf.where(known, y, tf.zeros((), y.dtype)), tf.where(known, p, 0.0), known


def _binary(y: tf.Tensor, p: tf.Tensor, known: tf.Tensor | None) -> tf.Tensor:
    """The mean binary cross-entropy over the known voxels. Unknown ones have y = p = 0, and add nothing to the sum."""
    mean = losses.cross_entropy(y, p)
    return mean if known is None else mean / tf.maximum(tf.reduce_mean(tf.cast(known, p.dtype)), 1e-12)


@tf.custom_gradient
def categorical_cross_entropy(y: tf.Tensor, p: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """-mean(log p of the true class) over the voxels that have one: (B, ..., C), (B, ..., C) -> scalar. The gradient is written
    out: it keeps y in its own type."""

    logs, labelled = log_of_true_class(y, p)
    count = tf.maximum(tf.reduce_sum(labelled), 1.0)

    def backward(upstream: tf.Tensor) -> tuple[None, tf.Tensor]:
        return None, -tf.cast(y, p.dtype) * (upstream / count) / _true_probability(y, p)

    return -tf.reduce_sum(logs) / count, backward


def log_of_true_class(y: tf.Tensor, p: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """log p of the true class, and 1; both are 0 in voxels without one: (B, ..., C), (B, ..., C) -> (B, ..., 1) each."""
    labelled = tf.cast(tf.reduce_max(y, -1, keepdims=True), p.dtype)
    return labelled * tf.math.log(_true_probability(y, p)), labelled


def _true_probability(y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
    found = tf.reduce_sum(tf.cast(y, p.dtype) * p, -1, keepdims=True)
    return tf.clip_by_value(found, losses.CLIPPING, 1.0)
