"""What a step comes to on a machine under one plan: seconds, who is busy, what the links carry. No TensorFlow here.

- OUTLOOK-1: the plan is applied to the step (`edit.apply`) and run by the simulator; each copy costs its latency besides.
- OUTLOOK-2: models side by side on one link find another one there for the share f of the time that each transfers in that
  direction, independently: n of them get (1 - (1 - f)^n) / (n f) of its rate. f follows from the step and the step from f.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lms3d.engine import edit
from lms3d.engine.cost import Machine, op_seconds
from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan
from lms3d.engine.step_model.simulate import LANES, SimulatedStep, simulate
from lms3d.engine.tuning import BATCHES_AHEAD

_COMPUTE, _AGAIN, _OUT, _IN = LANES
_ROUNDS, _NEAR = 50, 1e-4  # of OUTLOOK-2: it settles in less than ten


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A step from batch to batch. Seconds and bytes are those of one step.

    step_seconds: with the gap before it and what each copy costs, run_seconds without. compute_seconds: of all ops;
    working_seconds: in which a kernel runs. out_seconds, in_seconds: in which the link carries something, so that bytes /
    seconds is the throughput that a profiler shows.
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
        """Of the device's time."""
        return self.working_seconds / self.step_seconds

    @property
    def bounds(self) -> tuple[float, float]:
        """Seconds of a step whose transfers all hide, and of one where nothing runs beside anything else."""
        lanes = (self.compute_seconds, self.out_seconds, self.in_seconds)
        rest = self.step_seconds - self.run_seconds
        return max(lanes) + rest, sum(lanes) + rest

    @property
    def out_bytes_per_second(self) -> float:
        """To the host, while something moves; 0 where nothing does."""
        return self.out_bytes / self.out_seconds if self.out_seconds else 0.0

    @property
    def in_bytes_per_second(self) -> float:
        """To the device, while something moves; 0 where nothing does."""
        return self.in_bytes / self.in_seconds if self.in_seconds else 0.0


def of(graph: StepGraph, plan: Plan, machine: Machine, *, gap_seconds: float = 0.0, sharers: int = 1) -> Outlook:
    """OUTLOOK-1. sharers: models on the link, this one included, all with the same step (OUTLOOK-2)."""
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
        compute_seconds=_seconds(run, _COMPUTE) + _seconds(run, _AGAIN),
        working_seconds=working_seconds(edited, machine),
        out_bytes=plan.swapped_out_bytes,
        in_bytes=plan.swapped_in_bytes,
        out_seconds=_seconds(run, _OUT),
        in_seconds=_seconds(run, _IN),
    )


def batch_bytes(graph: StepGraph) -> int:
    """Of one batch, of all that lie on the device (`StepGraph.batches`)."""
    return sum(graph.batches) // (1 + BATCHES_AHEAD)


def working_seconds(graph: StepGraph, machine: Machine) -> float:
    """In which kernels run: without what launching them takes, which a measured op does not tell apart."""
    launched = (op for op in graph.ops if op.type not in ("SwapOut", "SwapIn"))
    found = ((op_seconds(graph, op, machine), op.signature in machine.op_table) for op in launched)
    return sum(seconds if measured else max(0.0, seconds - machine.op_seconds) for seconds, measured in found)


def share_of_rate(busy: float, sharers: int) -> float:
    """OUTLOOK-2: the mean of 1 / (1 + k), k of the other sharers there at a time, each for the share `busy` of it."""
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
