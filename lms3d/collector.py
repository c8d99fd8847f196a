"""Turns Python's garbage collector off while TensorFlow and Keras are imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_from_imports() -> Iterator[None]:
    """Collects no garbage within the block, and exempts the objects made in it from later collections.

    Use it around the first import of TensorFlow, which makes 400,000 objects that stay. Visiting them takes 1 s of the import's
    5.4 s of processor time, and 0.24 s of each full collection afterwards (2 cores, TensorFlow 2.21, `time.process_time` around the
    imports of `lms3d.training.trainer`). If TensorFlow has been imported already, or the collector is off, this does nothing.
    """
    if "tensorflow" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
