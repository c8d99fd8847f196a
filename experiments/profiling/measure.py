"""Lanes -> what the case study reports of a range of batches, and what explains it. No TensorFlow here.

The range is from the start of its first step to the end of its last one. Of each lane the union counts: transfers at the same time,
or ops on two threads, are one time.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from lms3d.experiments.profiling import intervals
from lms3d.experiments.profiling.intervals import Interval
from lms3d.experiments.profiling.lanes import COMPUTE, DATA, IN, OUT, WAIT, LaneSpan, Trace

PICO = 1e-12
Kernel = tuple[str, str]
"""The name of a kernel, and the type of the operations that launch it."""


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """Transfers one way between the device and the swap tier. busy_seconds: in which at least one transfer was under way."""

    transfers: int
    size_bytes: int
    busy_seconds: float
    range_seconds: float

    @property
    def bytes_per_busy_second(self) -> float | None:
        """The rate of the link while it is used; None if nothing was transferred."""
        return self.size_bytes / self.busy_seconds if self.busy_seconds and self.size_bytes else None

    @property
    def bytes_per_second(self) -> float:
        """The rate over the whole range."""
        return self.size_bytes / self.range_seconds


@dataclass(frozen=True, kw_only=True)
class OpWork:
    """Floating-point operations of an op, and the bytes of its inputs and results."""

    flops: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """Launches and seconds of a kernel in a step, the mean over the steps, for one type of operations.

    flops, size_bytes: the work of those operations that spend most of their time in this kernel; 0 if it is not known. Padding and
    changes of layout, which cuDNN launches beside a convolution, have none.
    """

    kernel: str
    op: str
    launches: float
    seconds: float
    flops: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """A range of training steps on one device.

    busy_share: of the range in which the device computes. idle_in_step_share: of the steps in which it does not. overlap_share: of
    the seconds of transfers in which it computes; None without transfers. gap_seconds: between each step and the next.
    waiting_seconds: for data. transferring_alone_share: of the range in which only transfers happen. data_share: of the range in
    which tf.data's functions run; data_overlap_share: the share of that beside computing; None if none ran.
    """

    device: str
    first_step: int
    step_seconds: tuple[float, ...]
    gap_seconds: tuple[float, ...]
    range_seconds: float
    busy_share: float
    idle_in_step_share: float
    transferring_alone_share: float
    overlap_share: float | None
    waiting_seconds: float
    data_share: float
    data_overlap_share: float | None
    allocations_per_step: float
    out: Transfers
    into: Transfers

    @property
    def middle_step_seconds(self) -> float:
        return statistics.median(self.step_seconds)


def whole(trace: Trace) -> Interval:
    """The range."""
    return trace.steps[0].begin, max(step.end for step in trace.steps)


def times(trace: Trace, lane: str) -> list[Interval]:
    """When at least one span of the lane was under way, within the range."""
    return intervals.common(intervals.union(span.interval for span in trace.lanes.get(lane, ())), [whole(trace)])


def profile(trace: Trace) -> StepProfile:
    """Figures of the steps of a trace, of which it has at least one."""
    computing, moving = times(trace, COMPUTE), intervals.union([*times(trace, OUT), *times(trace, IN)])
    range_ps, moving_ps = whole(trace)[1] - whole(trace)[0], intervals.total(moving)
    both_ps = intervals.total(intervals.common(moving, computing))
    data = times(trace, DATA)
    data_ps, data_beside_ps = intervals.total(data), intervals.total(intervals.common(data, computing))
    steps = intervals.union(step.interval for step in trace.steps)
    in_steps = intervals.total(intervals.common(steps, computing)) / intervals.total(steps)
    return StepProfile(
        device=trace.device,
        first_step=trace.steps[0].number,
        step_seconds=tuple(PICO * (step.end - step.begin) for step in trace.steps),
        gap_seconds=tuple(PICO * (end - begin) for begin, end in gaps(trace)),
        range_seconds=PICO * range_ps,
        busy_share=intervals.total(computing) / range_ps,
        idle_in_step_share=1 - in_steps,
        transferring_alone_share=(moving_ps - both_ps) / range_ps,
        overlap_share=both_ps / moving_ps if moving_ps else None,
        waiting_seconds=PICO * intervals.total(times(trace, WAIT)),
        data_share=data_ps / range_ps,
        data_overlap_share=data_beside_ps / data_ps if data_ps else None,
        allocations_per_step=_allocations(trace) / len(trace.steps),
        out=_link(trace, OUT),
        into=_link(trace, IN),
    )


def kernels(trace: Trace, works: Mapping[str, OpWork] | None = None) -> list[KernelTime]:
    """The kernels within the range, the slowest first. works: of the operations of a step, by name."""
    found: dict[Kernel, list[int]] = {}
    for span in within(trace, COMPUTE):
        found.setdefault(_kernel(span), []).append(span.end - span.begin)
    done: dict[Kernel, list[OpWork]] = {kernel: [] for kernel in found}
    for name, kernel in _main_kernels(trace).items():
        done[kernel] += [works[name]] if works and name in works else []
    steps = len(trace.steps)
    made = [
        KernelTime(
            kernel=kernel[0], op=kernel[1], launches=len(times) / steps, seconds=PICO * sum(times) / steps,
            flops=sum(work.flops for work in done[kernel]), size_bytes=sum(work.size_bytes for work in done[kernel]),
        )
        for kernel, times in found.items()
    ]  # fmt: skip
    return sorted(made, key=lambda kernel: -kernel.seconds)


def _kernel(span: LaneSpan) -> Kernel:
    return span.name, span.op.rpartition(":")[2]


def _main_kernels(trace: Trace) -> dict[str, Kernel]:
    """The kernel in which each operation spends most of its time, by the operation's name."""
    spent: dict[str, dict[Kernel, int]] = {}
    for span in within(trace, COMPUTE):
        of_op = spent.setdefault(span.op.rpartition(":")[0], {})
        of_op[_kernel(span)] = of_op.get(_kernel(span), 0) + span.end - span.begin
    return {name: max(of_op, key=lambda kernel: of_op[kernel]) for name, of_op in spent.items()}


def gaps(trace: Trace) -> list[Interval]:
    """The times from the end of each step to the beginning of the next, in which no step runs."""
    pairs = zip(trace.steps, trace.steps[1:], strict=False)
    return [(one.end, next_one.begin) for one, next_one in pairs if next_one.begin > one.end]


def within(trace: Trace, lane: str) -> list[LaneSpan]:
    """Spans of the lane that begin in the range."""
    begin, end = whole(trace)
    return [span for span in trace.lanes.get(lane, ()) if begin <= span.begin < end]


def _link(trace: Trace, lane: str) -> Transfers:
    found, (begin, end) = within(trace, lane), whole(trace)
    return Transfers(
        transfers=len(found),
        size_bytes=sum(span.size_bytes for span in found),
        busy_seconds=PICO * intervals.total(times(trace, lane)),
        range_seconds=PICO * (end - begin),
    )


def _allocations(trace: Trace) -> int:
    begin, end = whole(trace)
    return bisect.bisect_left(trace.allocations, end) - bisect.bisect_left(trace.allocations, begin)
