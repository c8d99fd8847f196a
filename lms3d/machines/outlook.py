"""Predicts a step on a machine under one plan: its seconds, which lanes are busy, what the links carry. No TensorFlow here.

- OUTLOOK-1: The plan is applied to the step (`edit.apply`), and the simulator runs it. Each copy costs its latency besides.
- OUTLOOK-2: n models share a link. Each transfers in one direction for the share f of the time, independently of the others. Then
  each gets (1 - (1 - f)^n) / (n f) of the link's rate. f follows from the step time, and the step time from f.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lms3d.engine import edit
from lms3d.engine.cost import Machine, op_seconds
from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan
from lms3d.engine.step_model.simulate import LANES, SimulatedStep, simulate

_COMPUTE, _RECOMPUTE, _OUT, _IN = LANES
_ROUNDS, _NEAR = 50, 1e-4  # of OUTLOOK-2, which converges in fewer than ten


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The prediction of a step. Seconds and bytes are for one step.

    step_seconds: with the gap before the step and the latency of each copy; run_seconds: without. compute_seconds: of all ops.
    working_seconds: in which a kernel runs. out_seconds, in_seconds: in which the link carries something in that direction, so that
    bytes / seconds is the throughput that a profiler shows.
    """

    peak_bytes: int
    step_seconds: float
    gap_seconds: float
    run_seconds: float
    compute_seconds: float
    working_seconds: float
    out_bytes: int
    in_bytes: int
    out_seconds: float
    in_seconds: float

    @property
    def busy_share(self) -> float:
        """The share of the step in which a kernel runs."""
        return self.working_seconds / self.step_seconds

    @property
    def bounds(self) -> tuple[float, float]:
        """(least, most) seconds of the step: if everything overlaps, and if nothing does."""
        lanes = (self.compute_seconds, self.out_seconds, self.in_seconds)
        rest = self.step_seconds - self.run_seconds
        return max(lanes) + rest, sum(lanes) + rest

    @property
    def out_bytes_per_second(self) -> float:
        """The throughput to the host while something moves; 0 if nothing does."""
        return self.out_bytes / self.out_seconds if self.out_seconds else 0.0

    @property
    def in_bytes_per_second(self) -> float:
        """The throughput to the device while something moves; 0 if nothing does."""
        return self.in_bytes / self.in_seconds if self.in_seconds else 0.0


def of(graph: StepGraph, plan: Plan, machine: Machine, *, gap_seconds: float = 0.0, sharers: int = 1) -> Outlook:
    """The prediction for a step under a plan (OUTLOOK-1). sharers: models on the link, this one included, all with the same step
    (OUTLOOK-2)."""
    edited = edit.apply(graph, plan)
    run = simulate(edited, machine)
    overhead = gap_seconds + machine.node_seconds * (len(plan.swap_outs) + len(plan.swap_ins))
    if sharers > 1:
        run = _shared(edited, machine, run, overhead, sharers)
    return Outlook(
        peak_bytes=run.peak_bytes,
        step_seconds=run.seconds + overhead,
        gap_seconds=gap_seconds,
        run_seconds=run.seconds,
        compute_seconds=_seconds(run, _COMPUTE) + _seconds(run, _RECOMPUTE),
        working_seconds=working_seconds(edited, machine),
        out_bytes=plan.swapped_out_bytes,
        in_bytes=plan.swapped_in_bytes,
        out_seconds=_seconds(run, _OUT),
        in_seconds=_seconds(run, _IN),
    )


def batch_bytes(graph: StepGraph) -> int:
    """The bytes of a step's batch, which alone lies on a GPU (`StepGraph.batches`)."""
    return sum(graph.batches)


def working_seconds(graph: StepGraph, machine: Machine) -> float:
    """The seconds in which kernels run, without the time to launch them. The time of a measured op includes its launch."""
    launched = (op for op in graph.ops if op.type not in ("SwapOut", "SwapIn"))
    costs = ((op_seconds(graph, op, machine), op.signature in machine.op_table) for op in launched)
    return sum(seconds if measured else max(0.0, seconds - machine.op_seconds) for seconds, measured in costs)


def share_of_rate(busy: float, sharers: int) -> float:
    """OUTLOOK-2: the mean of 1 / (1 + k), if k of the other sharers are on the link at a time, each for the share `busy` of it."""
    return 1.0 if busy <= 0 else (1 - (1 - min(busy, 1.0)) ** sharers) / (sharers * min(busy, 1.0))


def _shared(graph: StepGraph, machine: Machine, run: SimulatedStep, overhead: float, sharers: int) -> SimulatedStep:
    for _ in range(_ROUNDS):
        before, whole = run.seconds, run.seconds + overhead
        out, back = (share_of_rate(_seconds(run, lane) / whole, sharers) for lane in (_OUT, _IN))
        slower = replace(
            machine,
            swap_out_bytes_per_second=machine.swap_out_bytes_per_second * out,
            swap_in_bytes_per_second=machine.swap_in_bytes_per_second * back,
        )
        run = simulate(graph, slower)
        if abs(run.seconds / before - 1) < _NEAR:
            break
    return run


def _seconds(run: SimulatedStep, lane: str) -> float:
    return sum(end - start for start, end in run.busy[lane])
