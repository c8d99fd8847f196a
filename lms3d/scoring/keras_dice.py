"""Region Dice as a Keras metric, for the cube space in which a model is trained."""

from __future__ import annotations

import functools
import math
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
    to the channel with the largest probability, if that is at least `threshold`; otherwise it belongs to each channel with at least
    0.5. ignored: the value of y_true in voxels that do not count; None: all count.
    channels: how many channels of the prediction count; None: all. No temporary is larger than one channel.
    """

    def __init__(
        self,
        region_channels: Sequence[int],
        *,
        channels: int | None = None,
        disjoint: bool = True,
        threshold: float = 0.5,
        ignored: int | None = None,
        name: str = "region_dice",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.region_channels, self.channels, self.disjoint = tuple(region_channels), channels, disjoint
        self.threshold, self.ignored = threshold, ignored
        self.total = self.add_variable((), initializer="zeros", name="total")
        self.count = self.add_variable((), initializer="zeros", name="count")

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: Any = None) -> None:
        """y_true (B, ..., C) 0 or 1, y_pred (B, ..., C) probabilities. `sample_weight` is not used."""
        common, sizes = self.counts(tf.convert_to_tensor(y_true), tf.convert_to_tensor(y_pred))
        scores = dice(common, sizes, both_empty=BOTH_EMPTY, where=tf.where, divide=tf.math.divide_no_nan)
        self.total.assign_add(tf.reduce_sum(scores))
        self.count.assign_add(tf.cast(tf.size(scores), self.count.dtype))

    def counts(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(B, ..., C), (B, ..., C or more) -> the voxels in both masks, and the sum of both masks' sizes: (B,), or more of several
        regions. A whole volume's are the sums over its parts (`lms3d.scoring.parts`)."""
        y_pred = y_pred[..., : self.channels]
        if self.disjoint:
            winner = tf.argmax(y_pred, axis=-1, output_type=tf.int32)
            chosen = _any(tf.equal(winner, channel) for channel in self.region_channels)
            predicted = chosen & (tf.reduce_max(y_pred, axis=-1) >= self.threshold) if self.threshold else chosen
        else:
            predicted = _any(y_pred[..., channel] >= 0.5 for channel in self.region_channels)
        true = _any(y_true[..., channel] > 0 for channel in self.region_channels)
        if self.ignored is not None:
            known = tf.not_equal(y_true[..., 0], tf.cast(self.ignored, y_true.dtype))
            predicted, true = predicted & known, true & known
        return _volume(predicted & true), _volume(predicted) + _volume(true)

    def result(self) -> tf.Tensor:
        return tf.math.divide_no_nan(tf.convert_to_tensor(self.total), tf.convert_to_tensor(self.count))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "region_channels": list(self.region_channels),
            "channels": self.channels,
            "disjoint": self.disjoint,
            "threshold": self.threshold,
            "ignored": self.ignored,
        }


@keras.saving.register_keras_serializable(package="lms3d")
class MeanDice(RegionDice):
    """The mean of `RegionDice` over regions. regions: the output channels of each. Others: see `RegionDice`.

    Of disjoint channels it counts voxels by class, since a hundred classes would need a hundred masks.
    """

    def __init__(self, regions: Sequence[Sequence[int]], **kwargs: Any) -> None:
        super().__init__((), **kwargs)
        self.regions = tuple(tuple(channels) for channels in regions)

    def counts(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `RegionDice.counts`; (regions * B,)."""
        if not self.disjoint or self.threshold or any(len(channels) != 1 for channels in self.regions):
            found = []
            for channels in self.regions:
                self.region_channels = channels
                found.append(super().counts(y_true, y_pred))
            return tf.concat([common for common, _ in found], 0), tf.concat([sizes for _, sizes in found], 0)
        return self._by_class(y_true, y_pred[..., : self.channels])

    def _by_class(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The counts of regions of one class each."""
        count = y_pred.shape[-1]
        flat = (y_pred.shape[0] or -1, math.prod(y_pred.shape[1:-1]))
        predicted = tf.reshape(tf.argmax(y_pred, axis=-1, output_type=tf.int32), flat)
        true = tf.reshape(tf.argmax(y_true, axis=-1, output_type=tf.int32), flat)
        if self.ignored is not None:  # a class of its own for voxels that do not count
            unknown = tf.reshape(tf.equal(y_true[..., 0], tf.cast(self.ignored, y_true.dtype)), flat)
            predicted, true = tf.where(unknown, count, predicted), tf.where(unknown, count, true)
        sizes = _counts(predicted, count) + _counts(true, count)
        common = _counts(tf.where(tf.equal(predicted, true), predicted, count), count)
        wanted = [channel for (channel,) in self.regions]
        common, sizes = (tf.reshape(tf.gather(counts, wanted, axis=1), [-1]) for counts in (common, sizes))
        return common, sizes

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "regions": [list(channels) for channels in self.regions]}
        del config["region_channels"]
        return config


def _counts(classes: tf.Tensor, count: int) -> tf.Tensor:
    """The voxels of the classes 0 to count - 1: (B, voxels) int32 -> (B, count) float32, exact up to 2^24 voxels."""
    return tf.cast(tf.math.bincount(classes, minlength=count + 1, maxlength=count + 1, axis=-1)[:, :count], tf.float32)


def _any(masks: Iterable[tf.Tensor]) -> tf.Tensor:
    return functools.reduce(tf.logical_or, masks)


def _volume(mask: tf.Tensor) -> tf.Tensor:
    """Voxels of each sample's mask, (B, ...) -> (B,) float32: exact up to 2^24 voxels, which is 256^3."""
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=list(range(1, mask.shape.rank)))
