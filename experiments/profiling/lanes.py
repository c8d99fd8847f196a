"""Events of a profile -> lanes of spans.

| lane    | GPU: events of the streams of `/device:GPU:0`  | CPU: events of the threads of `/host:CPU`                        |
|---------|------------------------------------------------|------------------------------------------------------------------|
| compute | kernels, memsets, copies within the device     | ops (`node:Type`) of the steps' functions, except swaps           |
| out     | MemcpyD2H, bytes from `memcpy_details`         | marks `lms/transfer/out`, made by the tier while it copies       |
| in      | MemcpyH2D, the same                            | marks `lms/transfer/in`                                          |
| wait    | IteratorGetNext on the thread of the steps     | the same                                                         |
| data    | ops of tf.data's functions, on the host        | the same                                                         |

Steps are marks, too (`lms3d.engine.tensorflow.marks`). On a CPU the op of a swap also lasts while it waits for its turn,
which the mark does not contain. tf.data's functions run on the same threads as the step. What the executor does
(`ExecutorState::Process`) has the id of its function, and so has the call of it: `FunctionRun` within a step,
`InstantiatedCapturedFunction::Run` in tf.data.

On a CPU, ops whose earlier runs took less than some 8,000 cycles (3 µs) may be absent: TensorFlow traces what it
counts as expensive.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms3d.engine.plan import SCOPE
from lms3d.errors import InputError
from lms3d.experiments.profiling import intervals, xplane
from lms3d.experiments.profiling.intervals import Interval
from lms3d.experiments.profiling.xplane import ProfileEvent, Thread

COMPUTE, OUT, IN, WAIT, DATA = "compute", "out", "in", "wait", "data"
STEP, TRANSFERS = f"{SCOPE}step/train", {f"{SCOPE}transfer/{way}": way for way in (OUT, IN)}
_OP, _SWAPS = re.compile(r"[^:\s]+:\w+"), (f"{SCOPE}swap_", f"{SCOPE}hold/")
_COPIES, _COPIED = {"MemcpyD2H": OUT, "MemcpyH2D": IN}, re.compile(r"\bsize:(\d+)")
_OP_OF_KERNEL = "tf_op"
_PROCESS, _CALL = "ExecutorState::Process", "FunctionRun"
_DATA_FUNCTION, _GET_NEXT = "InstantiatedCapturedFunction::Run", "IteratorGetNext"


@dataclass(frozen=True, kw_only=True)
class LaneSpan:
    """Something on one thread or stream. Picoseconds since the profile began; number: of a step, as in lms_stats.csv. op: the
    operation (`node:Type`) that a kernel of a GPU belongs to, if it is known."""

    name: str
    line: str
    begin: int
    end: int
    size_bytes: int = 0
    number: int = 0
    op: str = ""

    @property
    def interval(self) -> Interval:
        return self.begin, self.end


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The lanes of one device, and the training steps. allocations: when memory of the device was handed out."""

    device: str
    steps: Sequence[LaneSpan]
    lanes: dict[str, Sequence[LaneSpan]]
    allocations: Sequence[int] = ()


def read(path: Path) -> Trace:
    """The lanes of a profile. InputError if it holds none, or no training step of LMS."""
    trace = of(xplane.load(path))
    if not trace.steps:
        raise InputError(f"{path}: found no training step; expected one of lms3d.train of this version, profile again")
    return trace


def of(space: Any) -> Trace:
    """The lanes of an XSpace message."""
    host, gpu = xplane.host_threads(space), xplane.gpu_streams(space)
    stepping = {thread for thread in host if any(event.name == STEP for event in thread.events)}
    computed, of_data = _ops(host, stepping)
    lanes = _streams(gpu[1]) if gpu else {COMPUTE: computed, **_marked(host)}
    waits = [_span(t, e) for t in stepping for e in t.events if e.name.startswith(_GET_NEXT)]
    steps = [_span(t, e, number=int(e.values.get("step_num", 0))) for t in stepping for e in t.events if e.name == STEP]
    return Trace(
        device=gpu[0] if gpu else "CPU",
        steps=sorted(steps, key=lambda step: step.begin),
        lanes={**lanes, WAIT: waits, DATA: of_data},
        allocations=_allocations(host, "GPU" if gpu else "cpu"),
    )


def _span(thread: Thread, event: ProfileEvent, **more: Any) -> LaneSpan:
    return LaneSpan(name=event.name, line=thread.name, begin=event.begin, end=event.end, **more)


def _streams(streams: Sequence[Thread]) -> dict[str, Sequence[LaneSpan]]:
    lanes: dict[str, list[LaneSpan]] = {COMPUTE: [], OUT: [], IN: []}
    for stream in streams:
        for event in stream.events:
            lane = _COPIES.get(event.name, COMPUTE)
            copied = _COPIED.search(str(event.values.get("memcpy_details", ""))) if lane != COMPUTE else None
            op = str(event.values.get(_OP_OF_KERNEL, "")) if lane == COMPUTE else ""
            lanes[lane].append(_span(stream, event, size_bytes=int(copied[1]) if copied else 0, op=op))
    return {**lanes}


def _marked(host: Sequence[Thread]) -> dict[str, Sequence[LaneSpan]]:
    """Transfers that a tier has marked."""
    lanes: dict[str, list[LaneSpan]] = {OUT: [], IN: []}
    for thread in host:
        for event in thread.events:
            if event.name in TRANSFERS:
                size_bytes = int(event.values.get("size_bytes", 0))
                lanes[TRANSFERS[event.name]].append(_span(thread, event, size_bytes=size_bytes))
    return {**lanes}


def _ops(host: Sequence[Thread], stepping: Collection[Thread]) -> tuple[list[LaneSpan], list[LaneSpan]]:
    """Ops of the steps, and ops of tf.data's functions; neither with swaps and the wait for data.

    What began before the profile did belongs to nobody, since its function is not known.
    """
    own, of_data = _functions_of_steps(host, stepping), _ids(host, _DATA_FUNCTION)
    computed: list[LaneSpan] = []
    others: list[LaneSpan] = []
    for thread in host:
        for op, function in _in_functions(thread):
            if not _OP.fullmatch(op.name) or op.name.startswith((*_SWAPS, _GET_NEXT)):
                continue
            if function in own or (function is None and thread in stepping):
                computed.append(_span(thread, op))
            elif function in of_data:
                others.append(_span(thread, op))
    return computed, others


def _functions_of_steps(host: Sequence[Thread], stepping: Collection[Thread]) -> set[Any]:
    """Ids of the functions that a step calls, directly or through others."""
    steps = intervals.union((e.begin, e.end) for thread in stepping for e in thread.events if e.name == STEP)
    calls = [e for thread in stepping for e in thread.events if e.name == _CALL]
    found = {e.values.get("id") for e in calls if intervals.common([(e.begin, e.begin + 1)], steps)}
    inner = [
        (e.values.get("id"), caller)
        for thread in host
        for e, caller in _in_functions(thread)
        if e.name == _CALL and caller is not None
    ]
    while more := {one for one, caller in inner if caller in found} - found:
        found |= more
    return found


def _ids(host: Sequence[Thread], name: str) -> set[Any]:
    return {e.values.get("id") for thread in host for e in thread.events if e.name.startswith(name)}


def _in_functions(thread: Thread) -> Iterator[tuple[ProfileEvent, Any]]:
    """What a thread did, and the id of the function that it ran then (None: no function, or one that began earlier)."""
    running: list[ProfileEvent] = []
    for event in thread.events:
        while running and running[-1].end <= event.begin:
            running.pop()
        if event.name == _PROCESS:
            running.append(event)
        else:
            yield event, running[-1].values.get("id") if running else None


def _allocations(host: Sequence[Thread], allocator: str) -> list[int]:
    made = [e for thread in host for e in thread.events if e.name == "MemoryAllocation"]
    return sorted(e.begin for e in made if allocator in str(e.values.get("allocator_name", "")))
