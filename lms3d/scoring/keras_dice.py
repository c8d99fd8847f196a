"""Region Dice as a Keras metric, for the cube space in which a model is trained."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from lms3d.scoring.dice import PERFECT, dice

BOTH_EMPTY = PERFECT
"""Dice of a sample whose region is empty in truth and prediction, whichever rules score the predictions later (EMPTY-3)."""


@keras.saving.register_keras_serializable(package="lms3d")
class RegionDice(keras.metrics.Metric):
    """The mean over samples of the Dice of one region: 0 if one mask is empty, `BOTH_EMPTY` if both are.

    region_channels: the output channels whose union is the region. disjoint: the channels exclude each other, so a voxel belongs
    to the channel with the largest probability, if that is at least 0.5; otherwise it belongs to each channel with at least 0.5.
    channels: how many channels of the prediction count; None: all. No temporary is larger than one channel.
    """

    def __init__(
        self,
        region_channels: Sequence[int],
        *,
        channels: int | None = None,
        disjoint: bool = True,
        name: str = "region_dice",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.region_channels, self.channels, self.disjoint = tuple(region_channels), channels, disjoint
        self.total = self.add_variable((), initializer="zeros", name="total")
        self.count = self.add_variable((), initializer="zeros", name="count")

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: Any = None) -> None:
        """y_true (B, ..., C) 0 or 1, y_pred (B, ..., C) probabilities. `sample_weight` is not used."""
        scores = self._score(tf.convert_to_tensor(y_true), tf.convert_to_tensor(y_pred))
        self.total.assign_add(tf.reduce_sum(scores))
        self.count.assign_add(tf.cast(tf.size(scores), self.count.dtype))

    def _score(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """(B, ..., C), (B, ..., C or more) -> Dice (B,)."""
        y_pred = y_pred[..., : self.channels]
        if self.disjoint:
            winner = tf.argmax(y_pred, axis=-1, output_type=tf.int32)
            chosen = _any(tf.equal(winner, channel) for channel in self.region_channels)
            predicted = chosen & (tf.reduce_max(y_pred, axis=-1) >= 0.5)
        else:
            predicted = _any(y_pred[..., channel] >= 0.5 for channel in self.region_channels)
        true = _any(y_true[..., channel] > 0 for channel in self.region_channels)
        sizes = _volume(predicted) + _volume(true)
        common = _volume(predicted & true)
        return dice(common, sizes, both_empty=BOTH_EMPTY, where=tf.where, divide=tf.math.divide_no_nan)

    def result(self) -> tf.Tensor:
        return tf.math.divide_no_nan(tf.convert_to_tensor(self.total), tf.convert_to_tensor(self.count))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "region_channels": list(self.region_channels),
            "channels": self.channels,
            "disjoint": self.disjoint,
        }


def _any(masks: Iterable[tf.Tensor]) -> tf.Tensor:
    return functools.reduce(tf.logical_or, masks)


def _volume(mask: tf.Tensor) -> tf.Tensor:
    """Voxels of each sample's mask, (B, ...) -> (B,) float32: exact up to 2^24 voxels, which is 256^3."""
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=list(range(1, mask.shape.rank)))
