"""Loss and Dice of a whole volume that is never in memory as a whole: it is scored part by part.

Both follow from sums over voxels. The sums of the parts are added up before they are divided, so the result is that of the loss and
the metrics of `compile` on the whole volume, to rounding.

    parts (y, p) -> sums of each -> added up -> loss, Dice
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from lms3d.scoring import losses, masked
from lms3d.scoring.dice import dice
from lms3d.scoring.keras_dice import BOTH_EMPTY, RegionDice

Part = tuple[np.ndarray, np.ndarray]
"""The truth and the probabilities of some voxels of one volume: (A, B, C, channels) uint8, and float32 of as many channels."""


@dataclass(frozen=True, kw_only=True)
class LossBySums:
    """The loss that `masked.loss_of` makes of these arguments, for one volume."""

    name: str
    classes: bool
    ignored: int | None = None

    def sums(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Sums over the voxels of (1, ..., C): y p of each channel, y + p of each channel, the logarithms of the cross-entropy, and
        how many of these count."""
        y, p, known = masked.known_part(y_true, y_pred, self.ignored)
        voxels, truth = list(range(1, y.shape.rank - 1)), tf.cast(y, p.dtype)
        overlap, sizes = tf.reduce_sum(truth * p, voxels), tf.reduce_sum(truth, voxels) + tf.reduce_sum(p, voxels)
        if self.name == "dice":
            return overlap, sizes
        if self.classes:
            logs, counted = masked.log_of_true_class(y, p)
        else:
            logs = tf.math.log(losses.probability_of_truth(y, p))
            counted = tf.ones_like(p) if known is None else tf.cast(known, p.dtype)
        return overlap, sizes, tf.reduce_sum(logs), tf.reduce_sum(counted)

    def of(self, sums: Sequence[np.ndarray]) -> float:
        """The loss of a volume with these sums."""
        overlap, sizes, *logs = sums
        soft = (2 * overlap + losses.SMOOTHING) / (sizes + losses.SMOOTHING)
        entropy = -logs[0] / np.maximum(logs[1], 1.0) if logs else 0.0
        return float(entropy - np.mean(soft[:, 1:] if self.classes else soft))


def scores(parts: Iterable[Part], loss: LossBySums, metrics: Sequence[RegionDice]) -> dict[str, float]:
    """The "loss" of one volume, and each metric by its name. parts: each voxel in one of them.

    It computes on the host: the device is full of the network, and a part is small.
    """
    total: list[list[np.ndarray]] = []
    with tf.device("CPU:0"):
        for y_true, y_pred in parts:
            y, p = tf.constant(y_true[np.newaxis]), tf.constant(y_pred[np.newaxis])
            found = [_exact(sums) for sums in (loss.sums(y, p), *(metric.counts(y, p) for metric in metrics))]
            total = (
                [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(total, found, strict=True)]
                if total
                else found
            )
    of_loss, *of_metrics = total
    each = zip(metrics, of_metrics, strict=True)
    return {"loss": loss.of(of_loss)} | {
        metric.name: float(np.mean(dice(common, sizes, both_empty=BOTH_EMPTY))) for metric, (common, sizes) in each
    }


def _exact(sums: Iterable[tf.Tensor]) -> list[np.ndarray]:
    """Float32 would round the sum of many parts."""
    return [one.numpy().astype(np.float64) for one in sums]
