"""Batches for Keras, from a cache: plain `tf.data.Dataset`s with static shapes.

The order of training samples is a function, not a state: sample g of the endless stream is case `g % n` of a
permutation drawn from (seed, g // n), seen under a symmetry drawn from (seed, g). So a run that resumes at step k needs
nothing but k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import tensorflow as tf

from data import augment as symmetries
from data.cache import Cache
from data.errors import DataError, data_error
from data.normalise import Normalisation

_PASS, _SYMMETRY = 0, 1  # separate random streams of one seed


def training_dataset(
    cache: Cache,
    ids: Sequence[str],
    normalisation: Normalisation,
    *,
    batch_size: int,
    seed: int,
    first_step: int = 0,
    augment: bool = True,
) -> tf.data.Dataset:
    """An endless stream of (image (B, N, N, N, 4) float32, target (B, N, N, N, 3) uint8).

    first_step: number of batches to leave out; the rest is exactly what follows them in the stream from 0.
    """
    ids = _check(cache, ids, batch_size)

    def load(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        samples = range(int(step) * batch_size, (int(step) + 1) * batch_size)
        chosen = [ids[sample_position(seed, len(ids), g)] for g in samples]
        return _load_batch(cache, chosen, normalisation, [sample_symmetry(seed, g) if augment else 0 for g in samples])

    # Counting comes first, so that skipping to `first_step` costs nothing.
    steps = tf.data.Dataset.range(first_step, np.iinfo(np.int64).max)
    return _batches(steps, load, cache.resolution, batch_size)


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
    return _batches(steps, load, cache.resolution, None if rest else batch_size)


def sample_position(seed: int, count: int, g: int) -> int:
    """Index of the case that sample g of the stream shows, of `count` cases."""
    return int(_permutation(seed, count, g // count)[g % count])


def sample_symmetry(seed: int, g: int) -> int:
    """Number of the symmetry under which sample g of the stream is shown."""
    return int(np.random.default_rng([abs(seed), _SYMMETRY, g]).integers(len(symmetries.SYMMETRIES)))


@lru_cache(maxsize=8)
def _permutation(seed: int, count: int, number: int) -> np.ndarray:
    return np.random.default_rng([abs(seed), _PASS, number]).permutation(count)


def _batches(
    steps: tf.data.Dataset,
    load: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    resolution: int,
    batch_size: int | None,
) -> tf.data.Dataset:
    """Step numbers -> batches, loaded one ahead."""
    cube = (batch_size, resolution, resolution, resolution)

    def load_step(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image, target = tf.numpy_function(load, [step], (tf.float32, tf.uint8), stateful=False)
        return tf.ensure_shape(image, (*cube, 4)), tf.ensure_shape(target, (*cube, 3))

    # One load at a time, whole batches: its arrays go to TensorFlow without a copy. A `batch` stage would copy them,
    # and parallel loads would each hold a batch; both count under a CPU memory limit.
    batches = steps.map(load_step, num_parallel_calls=None)
    # Last, so that loading overlaps the step. One batch is enough to hide it and the least that can.
    batches = batches.prefetch(1)
    options = tf.data.Options()
    options.autotune.enabled = False  # would enlarge the prefetch buffer
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF  # ranks get own ids
    return batches.with_options(options)


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


def aligned_empty(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Like np.empty, at an address from which TensorFlow takes an array over without a copy (64 bytes)."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


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
