"""What the exact pipelines of both tasks are built from: an order of samples that is a function, and batches that Python
loads without a copy.

Sample g of the endless training stream is item `g % n` of a permutation drawn from (seed, g // n), changed in a way that is
drawn from (seed, g). So a run that resumes at sample k needs nothing but k, and ranks that deal out the stream among
themselves see together what one rank with a larger batch sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf
from joblib import cpu_count  # type: ignore[import-untyped]

AHEAD_BYTES = 256 * 2**20
"""Of the host's memory, for batches that are loaded ahead of the training: 13 of 32 radiographs, 2 of one volume at 192^3."""
LEAST_AHEAD, MOST_AHEAD = 2, 9
"""One that is ready and one that is being made, whatever their size; more than eight at work wait for Python's lock."""

_PASS = 0  # the random stream of permutations; pipelines use others of the same seed


def sample_position(seed: int, count: int, g: int) -> int:
    """Index of the item that sample g of the stream shows, of `count` items."""
    return int(_permutation(seed, count, g // count)[g % count])


def rank_samples(step: int, batch_size: int, first_sample: int, rank: int, size: int) -> range:
    """Numbers of the samples in batch `step` of a rank: every `size`-th, as the case study dealt out its subjects."""
    start = first_sample + step * batch_size * size + rank
    return range(start, start + batch_size * size, size)


def check_place(first_sample: int, rank: int, size: int) -> None:
    """ValueError unless the place in the stream is one."""
    if first_sample < 0 or not 0 <= rank < size:
        raise ValueError(
            f"first_sample {first_sample}, rank {rank} of {size}; expected first_sample >= 0, 0 <= rank < size"
        )


def loaded(
    steps: tf.data.Dataset,
    load: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    signature: Sequence[tf.TensorSpec],
) -> tf.data.Dataset:
    """Step numbers -> batches as `load` makes them (`aligned_empty` arrays of `signature`), in order, ahead of the training.

    Several are loaded at once, each in a thread of its own: `load` must allow that.
    """

    def load_step(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        arrays = tf.numpy_function(load, [step], [spec.dtype for spec in signature], stateful=False)
        return tuple(tf.ensure_shape(array, spec.shape) for array, spec in zip(arrays, signature, strict=True))

    ahead = batches_ahead(signature)
    # Whole batches: their arrays go to TensorFlow without a copy. A `batch` stage would copy them, and copies count under a CPU
    # memory limit. The map keeps what is ready until its turn comes, `ahead` batches with those that are being made; a
    # `prefetch` stage behind it would add one more.
    batches = steps.map(load_step, num_parallel_calls=ahead, deterministic=True)
    options = tf.data.Options()
    options.autotune.enabled = False  # would load more ahead
    options.threading.private_threadpool_size = ahead  # else loads would hold the training step's threads
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )  # ranks get own samples
    return batches.with_options(options)


def batches_ahead(signature: Sequence[tf.TensorSpec]) -> int:
    """How many batches of `signature` are loaded or lie ready at once: one for each core and one more, within AHEAD_BYTES.

    At least two, and two of batches of unknown size: so many the plan of a memory limit counts.
    """
    if not all(spec.shape.is_fully_defined() for spec in signature):
        return LEAST_AHEAD
    batch_bytes = sum(math.prod(spec.shape) * spec.dtype.size for spec in signature)
    return max(LEAST_AHEAD, min(cpu_count() + 1, MOST_AHEAD, AHEAD_BYTES // batch_bytes))


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like np.empty, at an address from which TensorFlow takes an array over without a copy (64 bytes)."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


@lru_cache(maxsize=8)
def _permutation(seed: int, count: int, number: int) -> np.ndarray:
    return np.random.default_rng([abs(seed), _PASS, number]).permutation(count)
