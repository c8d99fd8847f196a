"""The planners: each turns a step into a plan. A new one is a subclass of `Planner` in a file of its own, and a line in `PLANNERS`.

No planner imports another. One that needs another's plan asks `PLANNERS` for it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lms3d.engine.plan import Plan
from lms3d.engine.prediction import Figures
from lms3d.registry import Registry

if TYPE_CHECKING:
    from lms3d.engine.step_model.study import Study

DEFAULT = "hybrid"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A plan, and what its planner knows about it.

    figures: those of its schedule; None if the planner has none, and a simulation gives them. within_limit: the planner vouches
    that the plan fits in the limit of the request. reported_planner: the planner's name in reports; empty: `plan.planner`.
    """

    plan: Plan
    figures: Figures | None = None
    within_limit: bool = False
    reported_planner: str = ""


class Planner:
    """Turns a study into a plan. It has no state: equal requests get equal plans.

    slices: whether a step that has no plan as a whole may be sliced without being asked for.
    rule: how it decides on a tensor, as a clause for reports; empty for a planner that weighs costs.
    """

    slices = False
    rule = ""

    def plan(self, study: Study) -> Outcome:
        """The plan for `study.request`. If no plan fits: DoesNotFit, with the smallest limit if the planner knows it."""
        raise NotImplementedError

    def floor(self, study: Study) -> int:
        """The smallest limit in bytes for which a plan of the step is found; unless a planner finds its own, that of the default
        planner. Takes seconds."""
        return PLANNERS[DEFAULT]().floor(study)

    def is_noop(self, study: Study) -> bool:
        """Whether the plan is known to be empty before the costs of single ops, which take seconds to measure."""
        return False

    def no_other_plan(self, parameters: Any) -> str | None:
        """None if another limit may give another plan, which is tried when a step runs out of memory.

        Else a clause that says why there is no other plan, and a way out. It stands between "the step ran out of memory in N; "
        and ", or raise the memory limit". Empty: there is nothing to say, and TensorFlow's own error is passed on.
        """
        return None


PLANNERS: Registry[type[Planner]] = Registry(
    "planner",
    hybrid="lms3d.engine.planners.hybrid.strategy:Hybrid",
    tflms="lms3d.engine.planners.tflms.planner:TFLMS",
    off="lms3d.engine.planners.off:Off",
    swap_everything="lms3d.engine.planners.uniform:SwapEverything",
    recompute_everything="lms3d.engine.planners.uniform:RecomputeEverything",
    recompute_all_but_convolutions="lms3d.engine.planners.uniform:RecomputeAllButConvolutions",
)
