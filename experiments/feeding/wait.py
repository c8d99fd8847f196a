"""tf.data's own account of the wait for data: the time of its iterator op, by TensorFlow's profiler.

The clock around next(iterator) sees Python's part of the call too; this one does not. It costs time itself, so it is kept
out of the steps that are measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from lms3d.experiments.profiling import xplane

GET_NEXT, EAGER = "IteratorGetNextOp::DoCompute", "EagerExecute"


def waiting_share(work: Callable[[], Any]) -> float | None:
    """The share of the seconds of `work` that its own thread spent in tf.data's iterators; None if no trace was written."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        started = time.perf_counter()
        try:
            work()
        finally:
            seconds = time.perf_counter() - started
            tf.profiler.experimental.stop()
        waited = get_next_seconds(Path(folder))
    return None if waited is None else waited / seconds


def get_next_seconds(folder: Path) -> float | None:
    """The seconds in IteratorGetNext on threads that also ran Python's ops, which leaves out tf.data's own stages. None
    without a trace in the folder, or without such a thread."""
    if not list(folder.rglob("*.xplane.pb")):
        return None
    threads = xplane.host_threads(xplane.load(xplane.newest(folder)))
    own = [thread for thread in threads if any(event.name == EAGER for event in thread.events)]
    waits = [event.end - event.begin for thread in own for event in thread.events if event.name == GET_NEXT]
    return sum(waits) / 1e12 if own else None
