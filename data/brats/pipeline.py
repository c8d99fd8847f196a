"""Batches for Keras, from a cache: plain `tf.data.Dataset`s with static shapes.

The order of training samples is a function, not a state (see `data.stream`): sample g of the endless stream is a case that
follows from (seed, g), seen under a symmetry drawn from (seed, g).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from data.brats import augment as symmetries
from data.brats.cache import Cache
from data.brats.normalise import Normalisation
from data.errors import DataError, data_error
from data.stream import aligned_empty, check_place, loaded, rank_samples, sample_position

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
    """An endless stream of (image (B, N, N, N, 4) float32, target (B, N, N, N, 3) uint8).

    first_sample: number of samples to leave out; the rest is exactly what follows them in the stream from 0.
    rank, size: batch k of a rank holds every `size`-th sample from first_sample + k * B * size + rank on.
    """
    ids = _check(cache, ids, batch_size)
    check_place(first_sample, rank, size)

    def load(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        samples = rank_samples(int(step), batch_size, first_sample, rank, size)
        chosen = [ids[sample_position(seed, len(ids), g)] for g in samples]
        return _load_batch(cache, chosen, normalisation, [sample_symmetry(seed, g) if augment else 0 for g in samples])

    # Counting comes first, so that leaving out samples costs nothing.
    steps = tf.data.Dataset.range(np.iinfo(np.int64).max)
    return loaded(steps, load, _signature(cache, batch_size))


def validation_dataset(
    cache: Cache, ids: Sequence[str], normalisation: Normalisation, *, batch_size: int
) -> tf.data.Dataset:
    """The cases in the order of `ids`, once, as (image, target) batches; the last one may be smaller.

    Where it is, the batch axis of `element_spec` is None; the tensors themselves always have full shapes.
    """
    ids = _check(cache, ids, batch_size)

    def load(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen = ids[int(step) * batch_size : (int(step) + 1) * batch_size]
        return _load_batch(cache, chosen, normalisation, [0] * len(chosen))

    whole, rest = divmod(len(ids), batch_size)
    steps = tf.data.Dataset.range(whole + bool(rest))
    return loaded(steps, load, _signature(cache, None if rest else batch_size))


def sample_symmetry(seed: int, g: int) -> int:
    """Number of the symmetry under which sample g of the stream is shown."""
    return int(np.random.default_rng([abs(seed), _SYMMETRY, g]).integers(len(symmetries.SYMMETRIES)))


def _signature(cache: Cache, batch_size: int | None) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    cube = (batch_size,) + (cache.resolution,) * 3
    return tf.TensorSpec((*cube, 4), tf.float32), tf.TensorSpec((*cube, 3), tf.uint8)


def _load_batch(
    cache: Cache, ids: Sequence[str], normalisation: Normalisation, numbers: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Images (B, N, N, N, 4) float32, normalised, and targets (B, N, N, N, 3) uint8, each under its symmetry."""
    cube = (len(ids),) + (cache.resolution,) * 3
    images, targets = aligned_empty((*cube, 4), np.float32), aligned_empty((*cube, 3), np.uint8)
    mean, std = np.asarray(normalisation.mean, np.float32), np.asarray(normalisation.std, np.float32)
    for image, target, case_id, k in zip(images, targets, ids, numbers, strict=True):
        stored, scale = cache.stored_image(case_id)
        # The symmetry comes first, as a view of the stored half floats: its strided read is the only copy that is made.
        np.multiply(symmetries.apply(stored, k), scale / std, out=image)
        image -= mean / std
        truth = cache.truth(case_id)
        assert truth is not None  # `_check` has seen to it
        target[:] = cache.schema.to_channels(symmetries.apply(truth, k))
    return images, targets


def _check(cache: Cache, ids: Sequence[str], batch_size: int) -> list[str]:
    if batch_size < 1:
        raise DataError(f"--batch-size: found {batch_size}; expected at least 1; 1 is usual for whole volumes")
    if not ids:
        raise DataError(f"{cache.directory}: found no case to load; expected at least one; check the split")
    for case_id in ids:
        if "truth.npy" not in cache.entry(case_id)["files"]:
            raise data_error(
                f"case {case_id}",
                found="no label map",
                expected="one for training and validation",
                advice="give the folder of the training set",
            )
    return list(ids)
