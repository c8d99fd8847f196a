"""What a copy costs this machine's processor: the limit of what can be emulated."""

from __future__ import annotations

import functools

from lms3d.swap.tuning import PROBE_BYTES, PROBE_FILES

_ROUNDS = 4


@functools.cache
def copy_seconds_per_byte() -> float:
    """Processor seconds of a lane's own copy, by one thread, of more bytes than the caches hold; the best of some rounds."""
    import tensorflow as tf

    from lms3d.swap.native import lanes
    from lms3d.swap.native.library import library

    lane, swap_out = lanes.memory(), library().operations.lms_swap_out
    with tf.device("CPU:0"):
        sources = [tf.ones((PROBE_BYTES // 4,)) for _ in range(PROBE_FILES)]
    slots = [lane.reserve(PROBE_BYTES) for _ in sources]
    seconds = []
    for _ in range(_ROUNDS):
        for source, slot in zip(sources, slots, strict=True):
            swap_out(x=source, lane=lane.number, slot=slot)
        lane.settle()
        counted = lane.take()
        seconds.append(counted.processor_seconds / counted.out_bytes)
    lane.close()
    return min(seconds)
