"""Ways to a plan. A new one is a subclass of `Planner` in a file of its own, and one line in `PLANNERS`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lms3d.engine.plan import Plan
from lms3d.engine.prediction import Figures
from lms3d.registry import Registry

if TYPE_CHECKING:
    from lms3d.engine.step_model.study import Study


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A plan, and what its planner knows about it.

    figures: of its schedule; None: a simulation tells. within_limit: the planner vouches that the plan fits in the limit of
    the request. called: the planner's name in reports, where it is not `plan.planner`.
    """

    plan: Plan
    figures: Figures | None = None
    within_limit: bool = False
    called: str = ""


class Planner:
    """Turns a request into a plan. Stateless: equal requests get equal plans.

    slices: whether a step that has no plan as a whole may be sliced for it without being asked for.
    rule: how it decides on a tensor, as a clause for reports; empty for a planner that weighs costs.
    """

    slices = False
    rule = ""

    def plan(self, study: Study) -> Outcome:
        """The plan for `study.request`. Raises DoesNotFit, with the smallest limit if it is known, where there is none."""
        raise NotImplementedError

    def is_noop(self, study: Study) -> bool:
        """True where the plan is known to be empty without the cost of single ops, which take seconds to measure."""
        return False

    def no_other_plan(self, parameters: Any) -> str | None:
        """None where another limit may give another plan, which is tried when a step runs out of memory.

        Else a clause that says why there is no other, and a way out. It stands between "the step ran out of memory in N; " and
        ", or raise the memory limit". Empty: there is nothing to say, and TensorFlow's own error goes on.
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
