"""What lies on the device beside a step's variables: looked up for a step that is about to run, supposed for one that is not."""

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
from lms3d.engine.tensorflow import reading

log = logging.getLogger("lms3d")


def observed(function: tf.types.experimental.ConcreteFunction, batch: Any, pool: str) -> OnDevice:
    """Now, with `batch` (nested tensors) at hand: its parts count where they lie in the device's memory."""
    cpu_pool.open_crumb_holes()
    batches = _with_waiting(
        [_size(part) for part in tf.nest.flatten(batch) if _has_size(part) and cpu_pool.counts(part)]
    )
    return OnDevice(extra_bytes=_extra_bytes(function, batches, pool), batches=batches)


def supposed(function: tf.types.experimental.ConcreteFunction, spec: Any, pool: str) -> OnDevice:
    """For batches of `spec` (nested TensorSpecs) and nothing else.

    The pipelines of `data` hand over memory of numpy's, which lies outside of a CPU's limited pool and counts nowhere.
    """
    if pool == "split":
        return OnDevice(extra_bytes=cpu_pool.gap_bytes(reading.captured_bytes(function)), batches=())
    return OnDevice(batches=_with_waiting([_size(p) for p in tf.nest.flatten(spec) if _has_size(p)]))


def bytes_in_use(key: str) -> int:
    """The device's own count; key: "current" or "peak". 0 where TensorFlow does not count, which is said once: what was there
    before the step is then taken to be its variables and batches, and its peak is known as predicted alone."""
    counted = memory.bytes_in_use(key)
    if counted is None:
        _tell_uncounted()
    return counted or 0


def forget_peak() -> None:
    """The next peak is that of what comes now."""
    with suppress(ValueError):  # where TensorFlow does not count
        tf.config.experimental.reset_memory_stats(memory.compute_device())


@cache
def _tell_uncounted() -> None:
    log.warning(
        "LMS: TensorFlow does not count the memory in use on this processor, so LMS goes by predicted peaks and measures none; for "
        "measured ones (and much faster convolutions) import lms3d before TensorFlow and leave TF_ENABLE_ONEDNN_OPTS alone, or "
        "call lms3d.limit_memory first"
    )


def _with_waiting(parts: Sequence[int]) -> tuple[int, ...]:
    """The tensors of a step's batch, and of the batches that wait in the pipeline meanwhile."""
    return tuple(parts) * (1 + tuning.BATCHES_AHEAD)


def _has_size(part: Any) -> bool:
    return isinstance(part, tf.Tensor | tf.TensorSpec) and part.dtype != tf.string and part.shape.is_fully_defined()


def _size(part: Any) -> int:
    return int(part.shape.num_elements() * part.dtype.size)


def _extra_bytes(function: tf.types.experimental.ConcreteFunction, batches: Sequence[int], pool: str) -> int:
    """What is there besides the step's variables and batches.

    Where all batches lie outside of a CPU's limited pool, the end of the pool can be looked up. Else chance decides how many of
    them wait just now, and a plan should not depend on that: a fixed number counts, and the rest in coarse steps.
    """
    known = reading.captured_bytes(function)
    taken = None if batches else cpu_pool.taken_bytes(memory.current_limit())
    if taken is not None:
        return _rounded_up(taken - known, tuning.FINE_BYTES)
    others = _rounded_up(bytes_in_use("current") - known - sum(batches), tuning.COARSE_BYTES)
    return others + (cpu_pool.gap_bytes(known) if pool == "split" else 0)


def _rounded_up(size_bytes: int, step_bytes: int) -> int:
    return -(-max(0, size_bytes) // step_bytes) * step_bytes
