"""What a machine can do, as plain numbers, and how long an op takes on it. No TensorFlow here.

Measured ops take their measured time (`lms3d.engine.tensorflow.op_costs`). The others follow a roofline: the longer of arithmetic
and memory traffic, plus a fixed overhead (Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009). It ignores caches, and
kernels that are slow for few channels: it errs by 30 % and more on a step, and by a factor of ten on a normalisation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lms3d.engine import tuning
from lms3d.engine.ir import METADATA_TYPES, RESIDENT_TYPES, Op, StepGraph


class OpCost(NamedTuple):
    """The measured seconds of an op alone, and the share of this process's cores, or of the GPU, that it keeps busy."""

    seconds: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Speeds of a compute device and of its swap tier. The defaults describe two CPU cores and a page-cached disk.

    swap_share: seconds that a step loses for each second of a transfer that hides behind compute. If the processor both computes
    and copies to the page cache, the step loses cores and memory bandwidth (`tuning.COPYING_SHARE`).
    op_table: measured costs by `Op.signature`; other ops are estimated.
    ops_scale: seconds that an op takes in a step, for each second that it takes alone by `op_table` or estimate (ADAPT-6).
    rates: (op type, FLOP/s) of the types that do not run at `flops_per_second`.
    workspaces: (op type, bytes of workspace for each byte of the inputs) of the types that take one, where no op is measured.
    node_seconds: seconds that a step loses for each swap-out and swap-in, independent of the size.
    mapped: the step may read swapped tensors where they lie (`Tier.can_map`), without memory of the device.
    """

    flops_per_second: float = 100e9
    bytes_per_second: float = 8e9
    swap_out_bytes_per_second: float = 1e9
    swap_in_bytes_per_second: float = 2e9
    op_seconds: float = 5e-6
    swap_share: float = 0.0
    node_seconds: float = 0.0
    mapped: bool = False
    ops_scale: float = 1.0
    rates: tuple[tuple[str, float], ...] = ()
    workspaces: tuple[tuple[str, float], ...] = ()
    op_table: Mapping[str, OpCost] = field(default_factory=dict, compare=False, repr=False)

    @property
    def transfer_price(self) -> float:
        """Seconds that a step loses for each second of transfer that hides behind compute."""
        return max(tuning.TRANSFER_PRICE, self.swap_share)

    def rate(self, op_type: str) -> float:
        """FLOP/s of ops of this type."""
        return next((rate for kind, rate in self.rates if kind == op_type), self.flops_per_second)


def op_seconds(graph: StepGraph, op: Op, machine: Machine) -> float:
    """Seconds of one op on the compute device, with nothing else at work there; 0 for ops that move no data."""
    if not op.on_device or op.shares_input or op.type in METADATA_TYPES or op.type in RESIDENT_TYPES:
        return 0.0
    if op.signature in machine.op_table:
        return machine.ops_scale * machine.op_table[op.signature].seconds
    traffic_seconds = moved_bytes(graph, op) / machine.bytes_per_second
    return machine.ops_scale * (machine.op_seconds + max(op.flops / machine.rate(op.type), traffic_seconds))


def with_workspaces(graph: StepGraph, machine: Machine) -> StepGraph:
    """The step with the workspaces that `machine` knows of its ops."""
    shares = dict(machine.workspaces)
    if not shares:
        return graph

    def taken(op: Op) -> Op:
        if not op.on_device or op.type not in shares:
            return op
        return replace(op, workspace_bytes=int(shares[op.type] * read_bytes(graph, op)))

    return graph.with_ops(tuple(map(taken, graph.ops)))


def copying_seconds(machine: Machine, out_bytes: int, in_bytes: int, nodes: int) -> float:
    """Seconds that a step loses to hidden transfers: the processor copies, and starts each of `nodes`."""
    moving = out_bytes / machine.swap_out_bytes_per_second + in_bytes / machine.swap_in_bytes_per_second
    return machine.swap_share * moving + machine.node_seconds * nodes


def scale_of(measured_seconds: float, expected_seconds: float, before: float = 1.0) -> float:
    """The new `Machine.ops_scale`, for ops that took other seconds than expected with the scale `before` (ADAPT-6).

    It stays as it was if the two differ by `tuning.SAME_COSTS` at most, or if there is nothing to compare. It has three digits, so
    that the next run finds the same plan in the cache.
    """
    if measured_seconds <= 0 or expected_seconds <= 0:
        return before
    ratio = measured_seconds / expected_seconds
    if max(ratio, 1 / ratio) <= 1 + tuning.SAME_COSTS:
        return before
    return float(f"{before * ratio:.3g}")


def scale_in_words(ops_scale: float) -> str:
    """`Machine.ops_scale` as a clause of a sentence."""
    return f"ops take {ops_scale:.3g} times as long as measured alone"


def moved_bytes(graph: StepGraph, op: Op) -> int:
    """The bytes that an op reads and writes."""
    return read_bytes(graph, op) + sum(t.bytes or 0 for t in op.outputs)


def read_bytes(graph: StepGraph, op: Op) -> int:
    """The bytes that an op reads."""
    return sum(graph.tensors[t].bytes or 0 for t in op.inputs if t in graph.tensors)


def device_seconds(graph: StepGraph, op: Op, machine: Machine) -> float:
    """Seconds of the whole device that one op takes, if other ops use the cores that it leaves idle."""
    measured = machine.op_table.get(op.signature)
    return op_seconds(graph, op, machine) * (measured.share if measured else 1.0)


def step_seconds(graph: StepGraph, machine: Machine, *, ordered: Collection[str] = ()) -> float:
    """Seconds of a step without swapping.

    TensorFlow runs every op that is ready: without a fixed order independent ops share the cores, and no core stays idle. The ops
    named in `ordered` run one after the other.
    """
    return sum(
        (op_seconds if op.name in ordered else device_seconds)(graph, op, machine)
        for op in graph.ops
        if not op.inserted or op.type not in ("SwapOut", "SwapIn")
    )
