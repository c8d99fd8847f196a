"""Python's garbage collector, while TensorFlow and Keras are imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_from_imports() -> Iterator[None]:
    """Collects nothing within the block, and never looks later at what it has made. For the first import of TensorFlow.

    That makes 400,000 objects, which stay: to look at them again and again takes 1 s of the 5.4 s of processor time of the import,
    and 0.24 s of each full collection afterwards (2 cores, TensorFlow 2.21, `time.process_time` around the imports of
    `lms3d.training.trainer`). Does nothing where TensorFlow has been imported or the collector is off.
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
