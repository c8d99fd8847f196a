"""The bytes on the device beside a step's variables: looked up before a step runs, supposed if it will not run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import tensorflow as tf

from lms3d.device import cpu_pool, memory
from lms3d.engine import tuning
from lms3d.engine.request import OnDevice
from lms3d.engine.step_model.pool import Pool
from lms3d.engine.tensorflow import reading

log = logging.getLogger("lms3d")


def observed(function: tf.types.experimental.ConcreteFunction, batch: Any, pool: Pool) -> OnDevice:
    """The bytes on the device now. batch: nested tensors; those count that lie in the device's memory, or come there for the step.

    Beside a GPU batches wait in the host's memory, unless the pipeline itself brings them to the GPU.
    """
    cpu_pool.open_crumb_holes()
    parts = [part for part in tf.nest.flatten(batch) if _has_size(part) and cpu_pool.counts(part)]
    there = [_size(part) for part in parts if pool.on_host or ":GPU:" in part.device]
    batches = (*map(_size, parts), *there * tuning.BATCHES_AHEAD)
    return OnDevice(extra_bytes=_extra_bytes(function, there * (1 + tuning.BATCHES_AHEAD), pool), batches=batches)


def supposed(function: tf.types.experimental.ConcreteFunction, spec: Any, pool: Pool) -> OnDevice:
    """The bytes on the device if there is nothing but batches of `spec` (nested TensorSpecs).

    The pipelines of `data` hand over numpy's memory, which lies outside a CPU's limited pool and counts nowhere. It lies outside a
    GPU, too, to which each batch comes for its own step.
    """
    if pool.limited_cpu:
        return OnDevice(extra_bytes=cpu_pool.gap_bytes(reading.captured_bytes(function)), batches=())
    batch = tuple(_size(part) for part in tf.nest.flatten(spec) if _has_size(part))
    return OnDevice(batches=batch * (1 + tuning.BATCHES_AHEAD if pool.on_host else 1))


def bytes_in_use(key: str) -> int:
    """The bytes that the device counts as in use. key: "current" or "peak".

    0 if TensorFlow does not count, of which a warning tells once. The memory in use before the step is then taken to be its
    variables and batches, and its only peak is the predicted one.
    """
    counted = memory.bytes_in_use(key)
    if counted is None:
        _warn_that_nothing_is_counted()
    return counted or 0


def forget_peak() -> None:
    """Lets the device's peak begin anew."""
    with suppress(ValueError):  # if TensorFlow does not count
        tf.config.experimental.reset_memory_stats(memory.compute_device())


@cache
def _warn_that_nothing_is_counted() -> None:
    log.warning(
        "LMS: TensorFlow does not count the memory in use on this processor, so LMS goes by predicted peaks and measures none; for "
        "measured ones (and much faster convolutions) import lms3d before TensorFlow and leave TF_ENABLE_ONEDNN_OPTS alone, or "
        "call lms3d.limit_memory first"
    )


def _has_size(part: Any) -> bool:
    return isinstance(part, tf.Tensor | tf.TensorSpec) and part.dtype != tf.string and part.shape.is_fully_defined()


def _size(part: Any) -> int:
    return int(part.shape.num_elements() * part.dtype.size)


def _extra_bytes(function: tf.types.experimental.ConcreteFunction, batches: Sequence[int], pool: Pool) -> int:
    """The bytes in use besides the step's variables and batches. batches: the sizes of those on the device.

    If all batches lie outside a CPU's limited pool, the end of the pool can be looked up. Otherwise chance decides how many batches
    wait at this moment, and a plan should not depend on that: a fixed number of them counts, and the rest in steps of at least
    twice as much. In smaller steps the smallest limit that a refusal named was refused by the next try (batches of 0.9 MB, of which
    3 count: 1 to 5 MB besides them).
    """
    known = reading.captured_bytes(function)
    taken = None if batches or not pool.on_host else cpu_pool.taken_bytes(memory.current_limit())
    if taken is not None:
        return _rounded_up(taken - known, tuning.FINE_BYTES)
    step = min(max(tuning.FINE_BYTES, 2 << sum(batches).bit_length()), tuning.COARSE_BYTES)
    others = _rounded_up(bytes_in_use("current") - known - sum(batches), step)
    return others + (cpu_pool.gap_bytes(known) if pool.limited_cpu else 0)


def _rounded_up(size_bytes: int, step_bytes: int) -> int:
    return -(-max(0, size_bytes) // step_bytes) * step_bytes
