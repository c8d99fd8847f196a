"""Lanes -> a trace in the Trace Event Format, as JSON: for ui.perfetto.dev and chrome://tracing.

    {"displayTimeUnit": "ms", "traceEvents": [
      {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "compute"}},           a lane; its threads are named likewise
      {"ph": "X", "pid": 2, "tid": 1, "name": "conv_1 Conv3D", "cat": "compute",            one span
       "ts": 12.5, "dur": 3.25, "args": {"size_bytes": 0}}, ...]}                           microseconds since the range began

The format: "Trace Event Format" of the Chromium project. Spans of one thread are nested or apart, as it asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lms3d.atomic_files import write_text
from lms3d.experiments.profiling import measure
from lms3d.experiments.profiling.lanes import COMPUTE, DATA, IN, OUT, WAIT, LaneSpan, Trace

TITLES = {
    "steps": "steps",
    COMPUTE: "compute",
    OUT: "device to host",
    IN: "host to device",
    WAIT: "wait for data",
    DATA: "input pipeline",
}
"""The titles of the lanes, in the order in which they are shown."""


def write(trace: Trace, path: Path) -> Path:
    """Writes the trace, a line for each event: some steps have tens of thousands."""
    lines = ",\n".join(json.dumps(event) for event in events(trace))
    write_text(path, f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n')
    return path


def events(trace: Trace) -> Iterator[dict[str, Any]]:
    """The names of lanes and threads, then the spans that begin in the range."""
    origin = measure.whole(trace)[0]
    for pid, (lane, title) in enumerate(TITLES.items(), start=1):
        spans = trace.steps if lane == "steps" else measure.within(trace, lane)
        yield _named("process_name", title, pid=pid)
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
        threads = {line: tid for tid, line in enumerate(sorted({span.line for span in spans}), start=1)}
        for line, tid in threads.items():
            yield _named("thread_name", line, pid=pid, tid=tid)
        yield from (_complete(span, lane, pid, threads[span.line], origin) for span in in_order(spans))


def in_order(spans: Sequence[LaneSpan]) -> list[LaneSpan]:
    """The spans by time; a span that contains others comes before them."""
    return sorted(spans, key=lambda span: (span.begin, -span.end))


def _named(kind: str, name: str, **where: int) -> dict[str, Any]:
    return {"ph": "M", **where, "name": kind, "args": {"name": name}}


def _complete(span: LaneSpan, lane: str, pid: int, tid: int, origin: int) -> dict[str, Any]:
    known = {"size_bytes": span.size_bytes} if span.size_bytes else {"step": span.number} if lane == "steps" else {}
    return {
        "ph": "X", "pid": pid, "tid": tid, "name": span.name.replace(":", " "), "cat": lane,
        "ts": (span.begin - origin) / 1e6, "dur": (span.end - span.begin) / 1e6, "args": known,
    }  # fmt: skip
