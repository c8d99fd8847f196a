"""Batches of cubes for Keras, from a cache: plain `tf.data.Dataset`s with static shapes, in the order of `data.stream`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from data import stream
from data.brats import augment as symmetries
from data.brats.cache import Cache
from data.brats.normalise import Normalisation
from data.errors import DataError

_SYMMETRY = 1  # random stream of a seed; see `data.stream`


def training_dataset(
    cache: Cache,
    ids: Sequence[str],
    normalisation: Normalisation,
    *,
    batch_size: int,
    seed: int,
    first_sample: int = 0,
    rank: int = 0,
    size: int = 1,
    augment: bool = True,
) -> tf.data.Dataset:
    """An endless stream of (image (B, N, N, N, 4) float32, target (B, N, N, N, 3) uint8), see `stream.training_stream`."""
    batches = _Batches(cache, ids, normalisation, batch_size)
    return stream.training_stream(
        len(ids), batches.load, batches.signature, sample_symmetry if augment else lambda seed, g: 0,
        batch_size=batch_size, seed=seed, first_sample=first_sample, rank=rank, size=size,
    )  # fmt: skip


def validation_dataset(
    cache: Cache, ids: Sequence[str], normalisation: Normalisation, *, batch_size: int
) -> tf.data.Dataset:
    """The cases in the order of `ids`, once, as (image, target) batches, see `stream.single_pass`."""
    batches = _Batches(cache, ids, normalisation, batch_size)
    return stream.single_pass(range(len(ids)), batches.load, batches.signature, batch_size)


def sample_symmetry(seed: int, g: int) -> int:
    """Number of the symmetry under which sample g of the stream is shown."""
    return int(np.random.default_rng([abs(seed), _SYMMETRY, g]).integers(len(symmetries.SYMMETRIES)))


class _Batches:
    """Batches of some cases of a cache. DataError where a case has no truth."""

    def __init__(self, cache: Cache, ids: Sequence[str], normalisation: Normalisation, batch_size: int) -> None:
        stream.require_batch(batch_size, "1 is usual for whole volumes")
        if not ids:
            raise DataError(f"{cache.directory}: found no case to load; expected at least one; check the split")
        for case_id in ids:
            if "truth.npy" not in cache.entry(case_id)["files"]:
                raise DataError(
                    f"case {case_id}: found no label map; expected one for training and validation; give the folder of "
                    "the training set"
                )
        self.cache, self.ids = cache, list(ids)
        self.mean, self.std = (np.asarray(v, np.float32) for v in (normalisation.mean, normalisation.std))

    def signature(self, batch_size: int | None) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        cube = (batch_size,) + (self.cache.resolution,) * 3
        return tf.TensorSpec((*cube, 4), tf.float32), tf.TensorSpec((*cube, 3), tf.uint8)

    def load(self, positions: Sequence[int], numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Images (B, N, N, N, 4) float32, normalised, and targets (B, N, N, N, 3) uint8, each under its symmetry."""
        cube = (len(positions),) + (self.cache.resolution,) * 3
        images, targets = stream.aligned_empty((*cube, 4), np.float32), stream.aligned_empty((*cube, 3), np.uint8)
        for image, target, position, k in zip(images, targets, positions, numbers, strict=True):
            case_id = self.ids[position]
            stored, scale = self.cache.stored_image(case_id)
            # The symmetry comes first, as a view of the stored half floats: its strided read is the only copy.
            np.multiply(symmetries.apply(stored, k), scale / self.std, out=image)
            image -= self.mean / self.std
            truth = self.cache.truth(case_id)
            assert truth is not None  # __init__ has seen to it
            target[:] = self.cache.schema.to_channels(symmetries.apply(truth, k))
        return images, targets
