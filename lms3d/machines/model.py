"""A machine as numbers with sources: one GPU of it, its links to the host, and who shares them. No TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from lms3d.engine.cost import Machine

FORWARD = ("Conv2D", "Conv3D")
INPUT_GRADIENT = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
FILTER_GRADIENT = ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")


@dataclass(frozen=True, kw_only=True)
class Number:
    """A value, and where it is from: a published figure, a vendor's sheet, a fit, or an assumption."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class MachineModel:
    """Rates are per second and of float32; those of the links are of one direction, with nobody else on them."""

    name: str
    title: str

    devices: Number
    """GPUs in the machine."""

    memory_bytes: Number
    """Of one GPU, as far as TensorFlow can have it."""

    forward_flops_per_second: Number
    """Convolutions."""

    input_gradient_flops_per_second: Number
    """Of convolutions; transposed convolutions are the same operation."""

    filter_gradient_flops_per_second: Number
    other_flops_per_second: Number
    """Matrix products."""

    memory_bytes_per_second: Number
    """Of ops that only move data: reads plus writes."""

    op_seconds: Number
    """Of launching one op, whatever its size."""

    to_host_bytes_per_second: Number
    to_device_bytes_per_second: Number
    link_latency_seconds: Number
    """Of one copy, whatever its size."""

    devices_per_link: Number
    """GPUs that share a link: 1 where each has its own, 2 for pairs on a bus."""

    batch_bytes_per_second: Number | None = None
    """At which the host hands over a batch between two steps, while the GPU waits; None: it does not wait."""

    def speeds(self) -> Machine:
        """What planners and the simulator work with: the host as the tier, nothing mapped."""
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
        )

    def gap_seconds(self, batch_bytes: int) -> float:
        """Between two steps, while the GPU has nothing to do."""
        return 0.0 if self.batch_bytes_per_second is None else batch_bytes / self.batch_bytes_per_second.value

    @property
    def limit_bytes(self) -> int:
        return int(self.memory_bytes.value)

    def numbers(self) -> dict[str, Number]:
        """Field -> number, of those that it has."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Number)}

    def faster(self, factor: float, source: str) -> MachineModel:
        """The same machine with all rates of its GPU times `factor`; links and launches stay."""
        rates: dict[str, Any] = {
            name: Number(value=number.value * factor, source=source)
            for name, number in self.numbers().items()
            if name.endswith("flops_per_second") or name == "memory_bytes_per_second"
        }
        return replace(self, **rates)
