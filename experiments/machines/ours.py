"""Our network under our plan and TFLMS's, at the case study's shares of memory: its 192^3 had 42 % of its needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lms3d.engine import plan_cache
from lms3d.engine.plan import Plan
from lms3d.engine.planners.tflms import Parameters
from lms3d.engine.request import Settings
from lms3d.engine.step_model.pool import GPU_POOL
from lms3d.errors import DoesNotFit
from lms3d.experiments.harness import published
from lms3d.experiments.harness.published import HIGH, LOW
from lms3d.experiments.machines.calibration import batch_bytes
from lms3d.experiments.machines.steps import TracedStep
from lms3d.machines import outlook
from lms3d.machines.model import MachineModel

SHARE = (LOW / HIGH) ** 3
"""0.42: what fits at 144^3 is that share of what 192^3 needs."""
LARGEST = 256
PLANNERS = {"lms3d": "hybrid", "TFLMS auto-tune": "tflms"}


@dataclass(frozen=True, kw_only=True)
class PlannedCase:
    """A cube on a machine. limit_bytes None: the case study's share of what the step needs."""

    network: str
    side: int
    machine: str
    method: str
    limit_bytes: int | None = None

    @property
    def name(self) -> str:
        limit = "share" if self.limit_bytes is None else f"{self.limit_bytes >> 20}MiB"
        return f"{self.network}-{self.side}-{limit}-{self.machine}-{PLANNERS[self.method]}"


def cases(machines: Mapping[str, MachineModel]) -> Iterator[PlannedCase]:
    """Every machine at 192^3, but once if several differ in memory alone; the case study's machines also at 256^3 in their own
    memory, and with the study's network at 192^3, in a share of its need and in their own memory."""
    theirs = (published.AC922, published.X86)
    order = [*theirs, *(name for name in machines if name not in theirs)]
    alike = [machines[name].speeds() for name in order]
    for machine in (name for i, name in enumerate(order) if alike[i] not in alike[:i]):
        for method in PLANNERS:
            yield PlannedCase(network="ours", side=HIGH, machine=machine, method=method)
    for network, side, share in (("ours", LARGEST, False), ("article", HIGH, True), ("article", HIGH, False)):
        for machine in theirs:
            limit = None if share else machines[machine].limit_bytes
            for method in PLANNERS:
                yield PlannedCase(network=network, side=side, machine=machine, method=method, limit_bytes=limit)


def compare(case: PlannedCase, step: TracedStep, machine: MachineModel) -> dict[str, Any]:
    """The step with and without LMS, as plain values; `fits` is False if there is no plan."""
    speeds, gap = machine.speeds(), machine.gap_seconds(batch_bytes(case.side))
    limit = int(step.needed_bytes * SHARE) if case.limit_bytes is None else case.limit_bytes
    settings = Settings(
        limit_bytes=limit, tier="host", planner=PLANNERS[case.method], parameters=Parameters(), pool=GPU_POOL
    )
    known = {
        **asdict(case),
        "limit_bytes": limit,
        "needed_bytes": step.needed_bytes,
        "share": limit / step.needed_bytes,
    }
    try:
        plan, _ = plan_cache.cached_plan(settings.request(step.graph, speeds, with_floor=False))
    except DoesNotFit:
        return {**known, "fits": False}
    made = outlook.of(step.graph, plan, speeds, gap_seconds=gap)
    without = outlook.of(step.graph, Plan(), speeds, gap_seconds=gap)
    return {
        **known, "fits": True, "ratio": made.step_seconds / without.step_seconds,
        "without_seconds": without.step_seconds, **asdict(made), "busy_share": made.busy_share,
        "recomputed_ops": len(plan.recomputes), "least_seconds": made.bounds[0], "most_seconds": made.bounds[1],
    }  # fmt: skip
