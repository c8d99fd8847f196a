"""What the exact pipelines of both tasks are built from: an order of samples that is a function, and batches that Python
loads without a copy.

Sample g of the endless training stream is item `g % n` of a permutation drawn from (seed, g // n), changed in a way that is
drawn from (seed, g). So a run that resumes at sample k needs nothing but k, and ranks that deal out the stream among
themselves see together what one rank with a larger batch sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

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
    *,
    ahead: int = 1,
) -> tf.data.Dataset:
    """Step numbers -> batches as `load` makes them (`aligned_empty` arrays of `signature`), `ahead` of the training."""

    def load_step(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        arrays = tf.numpy_function(load, [step], [spec.dtype for spec in signature], stateful=False)
        return tuple(tf.ensure_shape(array, spec.shape) for array, spec in zip(arrays, signature, strict=True))

    # One load at a time, whole batches: its arrays go to TensorFlow without a copy. A `batch` stage would copy them,
    # and parallel loads would each hold a batch; both count under a CPU memory limit.
    batches = steps.map(load_step, num_parallel_calls=None)
    # Last, so that loading overlaps the step. One batch is enough to hide it and the least that can.
    batches = batches.prefetch(ahead)
    options = tf.data.Options()
    options.autotune.enabled = False  # would enlarge the prefetch buffer
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )  # ranks get own samples
    return batches.with_options(options)


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like np.empty, at an address from which TensorFlow takes an array over without a copy (64 bytes)."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


@lru_cache(maxsize=8)
def _permutation(seed: int, count: int, number: int) -> np.ndarray:
    return np.random.default_rng([abs(seed), _PASS, number]).permutation(count)
