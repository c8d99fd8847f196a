"""tf.data's own account of the wait for data: what its iterator op took, by TensorFlow's profiler.

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

GET_NEXT, EAGER = "IteratorGetNextOp::DoCompute", "EagerExecute"


def waiting_share(work: Callable[[], Any]) -> float | None:
    """Share of the seconds of `work` that its own thread spent in tf.data's iterators; None where no trace was written."""
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
        traces = sorted(Path(folder).rglob("*.xplane.pb"))
        waited = get_next_seconds(traces[0].read_bytes()) if traces else None
    return None if waited is None else waited / seconds


def get_next_seconds(trace: bytes) -> float | None:
    """Seconds in IteratorGetNext on threads that also ran Python's ops: not where tf.data itself takes from a stage."""
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2  # no public name for what the profiler writes
    except ImportError:
        return None
    total, seen = 0.0, False
    for plane in xplane_pb2.XSpace.FromString(trace).planes:
        for line in plane.lines:
            events = [(plane.event_metadata[event.metadata_id].name, event.duration_ps) for event in line.events]
            if any(name == EAGER for name, _ in events):
                seen = True
                total += sum(duration for name, duration in events if name == GET_NEXT) / 1e12
    return total if seen else None
