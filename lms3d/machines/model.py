"""A machine as numbers with sources: one of its GPUs, the GPU's links to the host, and who shares them. No TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from lms3d.engine.cost import Machine

FORWARD = ("Conv2D", "Conv3D")
INPUT_GRADIENT = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
FILTER_GRADIENT = ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")


@dataclass(frozen=True, kw_only=True)
class Number:
    """A value and its source: a published figure, a vendor's data sheet, a fit, or an assumption."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class MachineModel:
    """A machine. Rates are per second and for float32. The rate of a link is for one direction, with no other GPU on the link."""

    name: str
    title: str

    devices: Number
    """The number of GPUs in the machine."""

    memory_bytes: Number
    """The memory of one GPU that TensorFlow can use."""

    forward_flops_per_second: Number
    """The rate of convolutions."""

    input_gradient_flops_per_second: Number
    """The rate of the gradients of convolutions with respect to their inputs; a transposed convolution is the same operation."""

    filter_gradient_flops_per_second: Number
    other_flops_per_second: Number
    """The rate of matrix products."""

    memory_bytes_per_second: Number
    """The rate of ops that only move data: bytes read plus bytes written."""

    op_seconds: Number
    """The time to launch one op of any size."""

    to_host_bytes_per_second: Number
    to_device_bytes_per_second: Number
    link_latency_seconds: Number
    """The fixed cost of one copy of any size."""

    devices_per_link: Number
    """The number of GPUs that share a link: 1 if each has its own, 2 for pairs on a bus."""

    batch_bytes_per_second: Number | None = None
    """The rate at which the host hands over a batch between two steps, while the GPU waits. None: the GPU does not wait."""

    filter_gradient_workspace: Number | None = None
    """The bytes of workspace that a convolution's gradient with respect to its filter takes, for each byte of its inputs. None: not
    known."""

    def speeds(self) -> Machine:
        """The machine as planners and the simulator take it: the host is the tier, and no tensor is mapped."""
        kinds = (
            (FORWARD, self.forward_flops_per_second),
            (INPUT_GRADIENT, self.input_gradient_flops_per_second),
            (FILTER_GRADIENT, self.filter_gradient_flops_per_second),
        )
        return Machine(
            flops_per_second=self.other_flops_per_second.value,
            bytes_per_second=self.memory_bytes_per_second.value,
            swap_out_bytes_per_second=self.to_host_bytes_per_second.value,
            swap_in_bytes_per_second=self.to_device_bytes_per_second.value,
            op_seconds=self.op_seconds.value,
            node_seconds=self.link_latency_seconds.value,
            rates=tuple((op_type, rate.value) for types, rate in kinds for op_type in types),
            workspaces=tuple((op_type, share.value) for op_type in FILTER_GRADIENT)
            if (share := self.filter_gradient_workspace)
            else (),
        )

    def gap_seconds(self, batch_bytes: int) -> float:
        """The seconds between two steps in which the GPU has nothing to do."""
        return 0.0 if self.batch_bytes_per_second is None else batch_bytes / self.batch_bytes_per_second.value

    @property
    def limit_bytes(self) -> int:
        return int(self.memory_bytes.value)

    def numbers(self) -> dict[str, Number]:
        """Field -> number, without the fields that are None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Number)}

    def faster(self, factor: float, source: str) -> MachineModel:
        """The same machine with all rates of its GPU multiplied by `factor`; links and launches stay as they are."""
        rates: dict[str, Any] = {
            name: Number(value=number.value * factor, source=source)
            for name, number in self.numbers().items()
            if name.endswith("flops_per_second") or name == "memory_bytes_per_second"
        }
        return replace(self, **rates)
