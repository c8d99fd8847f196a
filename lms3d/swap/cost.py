"""What a machine can do, as plain numbers, and how long an op takes on it. No TensorFlow here.

Roofline: an op takes the longer of its arithmetic and its memory traffic, plus a fixed overhead
(Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009). It knows nothing of caches or of kernels that are slow
for few channels: expect 30 % error on a step, more on a single op.
"""

from __future__ import annotations

from dataclasses import dataclass

from lms3d.swap.ir import ALIAS_TYPES, METADATA_TYPES, RESIDENT_TYPES, Op, StepGraph


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Speeds of a compute device and of its swap tier. The defaults are those of two CPU cores and a page-cached disk."""

    flops_per_second: float = 100e9
    bytes_per_second: float = 8e9
    swap_out_bytes_per_second: float = 1e9
    swap_in_bytes_per_second: float = 2e9
    op_seconds: float = 5e-6


def op_seconds(graph: StepGraph, op: Op, machine: Machine) -> float:
    """Seconds of one op alone on the compute device; 0 for ops that move no data."""
    if not op.on_device or op.type in ALIAS_TYPES or op.type in METADATA_TYPES or op.type in RESIDENT_TYPES:
        return 0.0
    moved = sum(graph.tensors[t].bytes or 0 for t in op.inputs if t in graph.tensors) + sum(
        t.bytes or 0 for t in op.outputs
    )
    return machine.op_seconds + max(op.flops / machine.flops_per_second, moved / machine.bytes_per_second)


def step_seconds(graph: StepGraph, machine: Machine) -> float:
    """Seconds of all ops, one after the other, without any swapping."""
    return sum(
        op_seconds(graph, op, machine) for op in graph.ops if not op.inserted or op.type not in ("SwapOut", "SwapIn")
    )
