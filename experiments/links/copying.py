"""What a copy costs this machine's processor: the limit of what can be emulated."""

from __future__ import annotations

import functools

import numpy as np

from lms3d.engine.tuning import PROBE_BYTES, PROBE_FILES

_ROUNDS = 4


@functools.cache
def copy_seconds_per_byte() -> float:
    """Processor seconds of a lane's own copy, by one thread, of more bytes than the caches hold; the best of some rounds."""
    import tensorflow as tf

    from lms3d.data import stream
    from lms3d.engine.native import lanes
    from lms3d.engine.native.library import library

    lane, swap_out = lanes.memory(), library().operations.lms_swap_out
    arrays = [stream.aligned_empty((PROBE_BYTES,), np.uint8) for _ in range(PROBE_FILES)]
    slots = [lane.reserve(PROBE_BYTES) for _ in arrays]
    for array in arrays:
        array.fill(1)  # its pages are there
    seconds = []
    for _ in range(_ROUNDS):
        for array, slot in zip(arrays, slots, strict=True):
            # Not memory of TensorFlow's pool, which may be smaller.
            swap_out(x=tf.experimental.dlpack.from_dlpack(array.__dlpack__()), lane=lane.number, slot=slot)
        lane.settle()
        counted = lane.take()
        seconds.append(counted.processor_seconds / counted.out_bytes)
    lane.close()
    return min(seconds)
