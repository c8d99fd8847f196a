"""The stream of batches for training on any data. Python loads them without a copy, and the order of samples is a pure function.

Sample g of the endless training stream is item `g % n` of a permutation drawn from (seed, g // n), under a symmetry drawn from
(seed, g). So a run that resumes at sample k needs only k. Ranks that share the stream see together what one rank with a larger
batch sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf
from joblib import cpu_count  # type: ignore[import-untyped]

from lms3d.data import page_locked
from lms3d.data.errors import DataError

AHEAD_BYTES = 256 * 2**20
"""The host memory for batches that are loaded ahead of the training: 13 batches of 32 radiographs, or 2 of one volume at 192^3."""
LEAST_AHEAD, MOST_AHEAD = 2, 9
"""At least one batch is ready and one in the making, whatever their size. More than eight loads at once would wait for Python's
lock."""

_PASS = 0  # the random stream of permutations; pipelines use others of the same seed


Load = Callable[[Sequence[int], Sequence[int]], tuple[np.ndarray, ...]]
"""Loads a batch into `aligned_empty` arrays, from the positions of the items and the number of each item's symmetry."""

Signature = Callable[[int | None], Sequence[tf.TensorSpec]]
"""Batch size (None if it varies) -> shape and type of each array of a batch."""


def training_stream(
    count: int, load: Load, signature: Signature, symmetry: Callable[[int, int], int], *, batch_size: int, seed: int,
    first_sample: int, rank: int, size: int,
) -> tf.data.Dataset:  # fmt: skip
    """The endless stream over `count` items. symmetry: (seed, g) -> the number of the symmetry under which sample g is shown.

    first_sample: the number of samples to leave out. The rest is exactly what follows them in the stream from 0.
    rank, size: batch k of a rank holds every `size`-th sample from first_sample + k * B * size + rank on.
    """
    if first_sample < 0 or not 0 <= rank < size:
        raise ValueError(
            f"first_sample {first_sample}, rank {rank} of {size}; expected first_sample >= 0, 0 <= rank < size"
        )

    def load_step(step: np.ndarray) -> tuple[np.ndarray, ...]:
        samples = rank_samples(int(step), batch_size, first_sample, rank, size)
        return load([sample_position(seed, count, g) for g in samples], [symmetry(seed, g) for g in samples])

    # The dataset counts steps and only then loads, so that leaving out samples costs nothing.
    return loaded(tf.data.Dataset.range(np.iinfo(np.int64).max), load_step, signature(batch_size))


def single_pass(positions: Sequence[int], load: Load, signature: Signature, batch_size: int) -> tf.data.Dataset:
    """The items at `positions`, in that order, once, upright; the last batch may be smaller.

    If it is smaller, the batch axis of `element_spec` is None; the tensors themselves always have full shapes.
    """

    def load_step(step: np.ndarray) -> tuple[np.ndarray, ...]:
        chosen = positions[int(step) * batch_size : (int(step) + 1) * batch_size]
        return load(chosen, [0] * len(chosen))

    whole, rest = divmod(len(positions), batch_size)
    return loaded(tf.data.Dataset.range(whole + bool(rest)), load_step, signature(None if rest else batch_size))


def require_batch(batch_size: int, usual: str) -> None:
    """DataError for a batch size below 1."""
    if batch_size < 1:
        raise DataError(f"--batch-size: found {batch_size}; expected at least 1; {usual}")


def sample_position(seed: int, count: int, g: int) -> int:
    """The index of the item, among `count`, that sample g of the stream shows."""
    return int(_permutation(seed, count, g // count)[g % count])


def rank_samples(step: int, batch_size: int, first_sample: int, rank: int, size: int) -> range:
    """The numbers of the samples in batch `step` of a rank: every `size`-th, as the case study dealt out its subjects."""
    start = first_sample + step * batch_size * size + rank
    return range(start, start + batch_size * size, size)


def loaded(
    steps: tf.data.Dataset, load: Callable[[np.ndarray], tuple[np.ndarray, ...]], signature: Sequence[tf.TensorSpec]
) -> tf.data.Dataset:
    """The batches of the steps, in order, loaded ahead of the training. load: step number -> `aligned_empty` arrays of `signature`.

    Several batches are loaded at once, each in a thread of its own, so `load` must be safe to call from several threads.
    """

    def load_step(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        arrays = tf.numpy_function(load, [step], [spec.dtype for spec in signature], stateful=False)
        return tuple(tf.ensure_shape(array, spec.shape) for array, spec in zip(arrays, signature, strict=True))

    ahead = batches_ahead(signature)
    # Whole batches are loaded, whose arrays go to TensorFlow without a copy. A `batch` stage would copy them, and copies count
    # under a CPU memory limit. The map itself holds up to `ahead` batches, ready or in the making; a `prefetch` stage would add
    # one.
    batches = steps.map(load_step, num_parallel_calls=ahead, deterministic=True)
    options = tf.data.Options()
    options.autotune.enabled = False  # it would load more batches ahead
    options.threading.private_threadpool_size = ahead  # otherwise loads would hold the training step's threads
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )  # each rank has its own
    return batches.with_options(options)


def batches_ahead(signature: Sequence[tf.TensorSpec]) -> int:
    """The number of batches that are ready or in the making at once: one per core and one more, within AHEAD_BYTES.

    It is at least two, and two for batches of unknown size. The plan for a memory limit counts them.
    """
    if not all(spec.shape.is_fully_defined() for spec in signature):
        return LEAST_AHEAD
    batch_bytes = sum(math.prod(spec.shape) * spec.dtype.size for spec in signature)
    return max(LEAST_AHEAD, min(cpu_count() + 1, MOST_AHEAD, AHEAD_BYTES // batch_bytes))


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like np.empty, at an address (a multiple of 64 bytes) from which TensorFlow takes an array over without a copy. Beside a GPU
    in page-locked memory."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size >= page_locked.LEAST_BYTES and (blocks := page_locked.blocks()) is not None:
        return blocks.lend(size).view(dtype).reshape(shape)
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


@lru_cache(maxsize=8)
def _permutation(seed: int, count: int, number: int) -> np.ndarray:
    return np.random.default_rng([abs(seed), _PASS, number]).permutation(count)
