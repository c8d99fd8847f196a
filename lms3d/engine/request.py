"""The question that every plan answers: one step, one limit, one machine. No TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lms3d.engine.cost import Machine
from lms3d.engine.ir import StepGraph
from lms3d.engine.slabs.choice import AUTO, Wanted
from lms3d.engine.step_model.pool import NO_POOL, Pool


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """The bytes on the device beside a step's variables while the step runs.

    batches: the size of each tensor of the step's own batch and of waiting batches; None: the step's arguments once.
    """

    extra_bytes: int = 0
    batches: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of all steps of a run.

    limit_bytes: device memory that a step may use. tier: a name in `tiers.TIERS`. pool: how the device hands out its memory.
    planner: a name in `planners.PLANNERS`; parameters: the planner's own, None if it has none.
    compile: "auto" compiles chains of small ops of a Keras step if that pays (`passes.compiling`), "off" none.
    slabs: `slabs.choice.AUTO`, OFF, or (level, number) pairs. most_elements: the largest tensor that the device's kernels can
    index; None if there is no such limit.
    """

    limit_bytes: int
    tier: str = "disk"
    planner: str = "hybrid"
    parameters: Any = None
    pool: Pool = NO_POOL
    slabs: Wanted = AUTO
    most_elements: int | None = None
    compile: str = "off"

    def request(self, graph: StepGraph, machine: Machine, **details: Any) -> StepRequest:
        """The request for one step under these settings; details: the other fields of `StepRequest`."""
        return StepRequest(settings=self, graph=graph, machine=machine, **details)


@dataclass(frozen=True, kw_only=True)
class StepRequest:
    """Plan this step. Other bytes on the device are part of the graph: `resident_bytes`, `batches`.

    step: "train", "test", "predict" or "function". effort_seconds: what planning may cost (`effort`); None: as much as the planner
    can use. run_seconds: the class of the time of all steps of the run (EFFORT-4); 0 if unknown, or too short to have much at
    stake. with_floor: also find the floor, which takes seconds.
    """

    settings: Settings
    graph: StepGraph
    machine: Machine
    step: str = "train"
    effort_seconds: float | None = None
    run_seconds: float = 0.0
    with_floor: bool = True

    @property
    def limit_bytes(self) -> int:
        return self.settings.limit_bytes

    def about(self, other: StepRequest) -> StepRequest:
        """The step of another request, asked with the effort of this one."""
        return replace(
            other, effort_seconds=self.effort_seconds, run_seconds=self.run_seconds, with_floor=self.with_floor
        )

    def under(self, **changes: Any) -> StepRequest:
        """The same step under other settings, such as another limit or planner."""
        return replace(self, settings=replace(self.settings, **changes))
