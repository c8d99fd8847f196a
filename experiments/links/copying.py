"""What a copy costs this machine's processor: the limit of what can be emulated. No TensorFlow here."""

from __future__ import annotations

import functools
import time

import numpy as np

from lms3d.swap.tuning import PROBE_BYTES, PROBE_FILES

_ROUNDS = 4


@functools.cache
def copy_seconds_per_byte() -> float:
    """Processor seconds of a copy, by one thread, of more bytes than the caches hold; the best of some rounds."""
    sources, copies = ([np.ones(PROBE_BYTES, np.uint8) for _ in range(PROBE_FILES)] for _ in range(2))
    seconds = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for to, source in zip(copies, sources, strict=True):
            np.copyto(to, source)
        seconds.append(time.thread_time() - began)
    return min(seconds) / (PROBE_FILES * PROBE_BYTES)
