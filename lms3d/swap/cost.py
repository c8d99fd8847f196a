"""What a machine can do, as plain numbers, and how long an op takes on it. No TensorFlow here.

What was measured for an op counts (`lms3d.swap.tensorflow.op_costs`). For the others a roofline: an op takes the longer of its
arithmetic and its memory traffic, plus a fixed overhead (Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009).
It knows nothing of caches or of kernels that are slow for few channels: it errs by 30 % and more on a step, and by a
factor of ten on a normalisation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lms3d.swap.ir import METADATA_TYPES, RESIDENT_TYPES, Op, StepGraph

# What a second of transfer costs at least, even where it hides behind compute: it takes memory bandwidth, and may be late.
TRANSFER_PRICE = 0.05


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Speeds of a compute device and of its swap tier. The defaults are those of two CPU cores and a page-cached disk.

    swap_share: seconds by which a step takes longer for each second of a transfer that hides behind compute. To a disk, a
    processor copies the bytes to the page cache: where it is the compute device, too, cores and memory bandwidth are lost to
    the step, and both work slower than alone (measured with isensee2017 at 96^3 on two cores: 0.16 s a step for 1.25 GB that
    went out or back, which takes 0.08 s alone).
    op_table: by `Op.signature` what was measured: the seconds of an op alone, and the share of the device's cores that it
    keeps busy. An op that is not in the table is estimated.
    mapped: the step may read what it swapped out where it lies (`tiers.DiskTier`), without memory of the device for it.
    """

    flops_per_second: float = 100e9
    bytes_per_second: float = 8e9
    swap_out_bytes_per_second: float = 1e9
    swap_in_bytes_per_second: float = 2e9
    op_seconds: float = 5e-6
    swap_share: float = 0.0
    mapped: bool = False
    op_table: Mapping[str, tuple[float, float]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def transfer_price(self) -> float:
        """Seconds that a step takes longer for each second of transfer that hides behind compute."""
        return max(TRANSFER_PRICE, self.swap_share)


def op_seconds(graph: StepGraph, op: Op, machine: Machine) -> float:
    """Seconds of one op alone on the compute device; 0 for ops that move no data."""
    if not op.on_device or op.shares_input or op.type in METADATA_TYPES or op.type in RESIDENT_TYPES:
        return 0.0
    if op.signature in machine.op_table:
        return machine.op_table[op.signature][0]
    moved = sum(graph.tensors[t].bytes or 0 for t in op.inputs if t in graph.tensors) + sum(
        t.bytes or 0 for t in op.outputs
    )
    return machine.op_seconds + max(op.flops / machine.flops_per_second, moved / machine.bytes_per_second)


def device_seconds(graph: StepGraph, op: Op, machine: Machine) -> float:
    """Seconds of the whole device that one op takes, if other ops use the cores that it leaves idle."""
    return op_seconds(graph, op, machine) * machine.op_table.get(op.signature, (0.0, 1.0))[1]


def step_seconds(graph: StepGraph, machine: Machine, *, ordered: Collection[str] = ()) -> float:
    """Seconds of a step without swapping.

    TensorFlow runs whatever is ready: in no fixed order, independent ops share the cores and none stays idle. The ops
    that are named in `ordered` run one after the other.
    """
    return sum(
        (op_seconds if op.name in ordered else device_seconds)(graph, op, machine)
        for op in graph.ops
        if not op.inserted or op.type not in ("SwapOut", "SwapIn")
    )
