"""Batches of radiographs from shards, in the order of `lms3d.data.stream`: images (B, N, N, 3) float32, normalised by ImageNet's mean and
standard deviation, and labels (B, 14) float32.

An image takes little work: nothing is parsed, no checksum is computed after a shard was first read, and one look-up turns bytes
into normalised floats in the batch. No rank loads the images of another, though all draw from one shuffling of the whole set.
`experiments.feeding.orders` has the scaling study's own pipelines, with which this one is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lms3d.data import stream
from lms3d.data.chest_xray.collection import FINDINGS
from lms3d.data.chest_xray.records import Part
from lms3d.data.errors import DataError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The values for each channel, for intensities from 0 to 1, that networks with ImageNet weights expect."""

_FLIP = 2  # the random stream of a seed; see `lms3d.data.stream`
_LEVELS = np.arange(256, dtype=np.float32)[:, None] / 255
_TABLE = ((_LEVELS - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)).astype(np.float32)
"""Grey level -> three normalised channels (256, 3)."""


def training_dataset(
    part: Part, *, batch_size: int, seed: int, first_sample: int = 0, rank: int = 0, size: int = 1, augment: bool = True
) -> tf.data.Dataset:
    """The endless stream of `stream.training_stream`. augment: whether to mirror half of the images left to right.

    DataError for a batch size below 1, an empty part, or a damaged shard (when it is first read).
    """
    batches = _Batches(part, batch_size)
    return stream.training_stream(
        len(part), batches.load, batches.signature, sample_flip if augment else lambda seed, g: False,
        batch_size=batch_size, seed=seed, first_sample=first_sample, rank=rank, size=size,
    )  # fmt: skip


def validation_dataset(part: Part, *, batch_size: int, rank: int = 0, size: int = 1) -> tf.data.Dataset:
    """This rank's share of the images (every `size`-th, from `rank` on), once; see `stream.single_pass`.

    A rank without an image of its own gets the first one.
    """
    batches = _Batches(part, batch_size)
    share = range(len(part))[rank::size] or range(1)
    return stream.single_pass(share, batches.load, batches.signature, batch_size)


def normalised(grey: np.ndarray) -> np.ndarray:
    """An image in the form that the networks take: (H, W) uint8 -> (H, W, 3) float32."""
    return _TABLE[grey]


def sample_flip(seed: int, g: int) -> bool:
    """Whether sample g of the stream is shown mirrored."""
    return bool(np.random.default_rng([abs(seed), _FLIP, g]).integers(2))


class _Batches:
    """Batches of the images of a part."""

    def __init__(self, part: Part, batch_size: int) -> None:
        stream.require_batch(batch_size, "16 is CheXNet's")
        if not len(part):
            raise DataError("shards: found no image to load; expected at least one; check the data set")
        self.part = part

    def signature(self, batch_size: int | None) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        side = self.part.resolution
        return tf.TensorSpec((batch_size, side, side, 3)), tf.TensorSpec((batch_size, len(FINDINGS)))

    def load(self, positions: Sequence[int], flips: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The images, (B, N, N, 3) float32, normalised and in part mirrored, and the labels, (B, 14) float32."""
        side = self.part.resolution
        images = stream.aligned_empty((len(positions), side, side, 3), np.float32)
        labels = stream.aligned_empty((len(positions), len(FINDINGS)), np.float32)
        for image, label, position, flip in zip(images, labels, positions, flips, strict=True):
            grey = self.part.image(position)
            # To mirror, copy the bytes: a look-up through a reversed view takes half as long again.
            np.take(_TABLE, grey[:, ::-1].copy() if flip else grey, axis=0, out=image, mode="clip")
            label[:] = self.part.labels[position]
        return images, labels
