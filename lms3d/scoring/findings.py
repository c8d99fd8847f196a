"""Multi-label classification in training: the cross-entropy, plain or weighted by class, and the AUROC.

In all functions: truth (B, C), 0 or 1 in any dtype; probabilities (B, C) in 0..1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

CLIPPING = 1e-7
BUCKETS = 1024
LARGEST_LOGIT = 16.0  # that of the largest float32 probability below 1; so a bucket is 1/32 wide


@keras.saving.register_keras_serializable(package="lms3d")
def binary_cross_entropy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """-mean(y log p + (1 - y) log(1 - p)) over batch and classes, one float32 scalar: the loss of CheXNet's 14 classes."""
    return -tf.reduce_mean(_log_of_truth(y_true, y_pred))


def class_weights(positives: Sequence[int], samples: int) -> tuple[list[float], list[float]]:
    """The weights w+ = |N| / (|P| + |N|) and w- = |P| / (|P| + |N|) of each class, from the counts of the training images.

    They are CheXNet's (arXiv:1711.05225), section 2.1. The weights of ChestX-ray8 (arXiv:1705.02315), 1 / w- and 1 / w+, also
    balance the two answers of a class, but give every class the same weight: one hernia in 500 images would outweigh all common
    findings. A class of which all images have the same answer has no weight.
    """
    share = [count / samples for count in positives]
    return [1 - s for s in share], share


@keras.saving.register_keras_serializable(package="lms3d")
class WeightedCrossEntropy(keras.losses.Loss):
    """-mean(w+ y log p + w- (1 - y) log(1 - p)) over batch and classes, with a w+ and a w- for each class."""

    def __init__(
        self,
        positive_weights: Sequence[float],
        negative_weights: Sequence[float],
        name: str = "weighted_cross_entropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if len(positive_weights) != len(negative_weights):
            raise ValueError(
                f"{name}: {len(positive_weights)} w+ and {len(negative_weights)} w-; expected as many of each"
            )
        self.positive_weights, self.negative_weights = list(positive_weights), list(negative_weights)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of each image, (B,)."""
        if y_pred.shape[-1] != len(self.positive_weights):
            raise ValueError(f"{self.name}: weights of {len(self.positive_weights)} classes, received {y_pred.shape}")
        weights = tf.where(tf.cast(y_true, tf.bool), self.positive_weights, self.negative_weights)
        return -tf.reduce_mean(weights * _log_of_truth(y_true, y_pred), axis=-1)

    def get_config(self) -> dict[str, Any]:
        weights = {"positive_weights": self.positive_weights, "negative_weights": self.negative_weights}
        return {**super().get_config(), **weights}


def _log_of_truth(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """The log of the probability of the truth, (B, C)."""
    p = tf.cast(y_pred, tf.float32)
    return tf.math.log(tf.clip_by_value(tf.where(tf.cast(y_true, tf.bool), p, 1 - p), CLIPPING, 1.0))


@keras.saving.register_keras_serializable(package="lms3d")
class Auroc(keras.metrics.Metric):
    """The mean area under the ROC curve, over the classes of which both answers were seen; NaN if there is none.

    The area is the chance that a positive image ranks above a negative one, where a tie counts half. Ranks are kept as the numbers
    of positives and negatives in buckets of the log-odds, (2, C, 1024). The probabilities of a rare class differ by little, so
    buckets of equal probability (`keras.metrics.AUC`) would put them all into one. Images less than 1/32 apart in log-odds may
    count as a tie; `lms3d.scoring.auroc` has the exact areas.

    Counts add up: the sum or the mean of the counts of parts of the data gives the area of the whole (`PooledAuroc`).
    """

    def __init__(self, classes: int, name: str = "auroc", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.classes = classes
        self.counts = self.add_variable((2, classes, BUCKETS), initializer="zeros", name="counts")

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: Any = None) -> None:
        """y_true (B, C), y_pred (B, C). `sample_weight` is not used."""
        positive = tf.cast(tf.cast(y_true, tf.bool), tf.float32)
        answers = tf.stack([positive, 1 - positive])
        # A product with one-hot rows, not scattered additions: deterministic on every device, and small.
        in_bucket = tf.one_hot(_bucket(tf.cast(y_pred, tf.float32)), BUCKETS)
        self.counts.assign_add(tf.einsum("sbc,bck->sck", answers, in_bucket))

    def result(self) -> tf.Tensor:
        return mean_area(tf.convert_to_tensor(self.counts))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "classes": self.classes}


def _bucket(p: tf.Tensor) -> tf.Tensor:
    """The bucket of each probability's log-odds, 0..BUCKETS - 1, in the same shape."""
    logit = tf.math.log(p) - tf.math.log1p(-p)
    place = (tf.clip_by_value(logit, -LARGEST_LOGIT, LARGEST_LOGIT) / LARGEST_LOGIT + 1) / 2 * BUCKETS
    return tf.minimum(tf.cast(place, tf.int32), BUCKETS - 1)


def mean_area(counts: tf.Tensor) -> tf.Tensor:
    """The mean area of the classes that have both positives and negatives; NaN if none has. counts: (2, C, BUCKETS)."""
    images = tf.reduce_sum(counts, axis=-1)  # (2, C)
    both = tf.reduce_all(images > 0, axis=0)
    positives, negatives = tf.unstack(tf.math.divide_no_nan(counts, images[..., None]))
    below = tf.cumsum(negatives, axis=-1, exclusive=True)
    areas = tf.reduce_sum(positives * (below + negatives / 2), axis=-1)
    return tf.reduce_mean(tf.boolean_mask(areas, both))


class PooledAuroc(keras.callbacks.Callback):
    """Replaces, in the logs of an epoch, the AUROC of this rank's images by that of all ranks' images.

    The mean of the ranks' areas is a different number: it never compares a positive on one rank with a negative on another, and a
    rank without a hernia has no area for that class. So the ranks add up their counts. The value is the same on each rank, so this
    callback must come before the one that averages logs over ranks.
    """

    def __init__(self, metric: Auroc, total: Callable[[np.ndarray], np.ndarray], *, validates: bool = True) -> None:
        """total: returns the sum (or mean) of an array over all ranks, which all call it at the same points.

        validates: whether this rank has validation images. If not, it evaluates one image to keep in step with the others.
        """
        super().__init__()
        self.metric, self.total, self.validates = metric, total, validates
        self._training = float("nan")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._training = float("nan")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Writes it to the logs of the last step as well: a run that is interrupted during validation resumes from these."""
        if batch + 1 == (self.params or {}).get("steps"):
            self._training = logs[self.metric.name] = self._pooled(1.0)

    def on_test_begin(self, logs: Any = None) -> None:
        """Reads the training counts before validation resets them, if a callback has cut the epoch short."""
        if np.isnan(self._training):
            self._training = self._pooled(1.0)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        name = self.metric.name
        if np.isfinite(
            self._training
        ):  # otherwise an earlier run took the epoch's last step, and nothing was trained here
            logs[name] = self._training
        logs[f"val_{name}"] = self._pooled(float(self.validates))

    def _pooled(self, weight: float) -> float:
        counts = weight * self.metric.counts.numpy()
        return float(mean_area(tf.convert_to_tensor(self.total(counts))))
