"""The planner that plans nothing: the step is traced, run and measured like any other. No TensorFlow here."""

from __future__ import annotations

from typing import Any

from lms3d.engine.plan import Plan
from lms3d.engine.planners import Outcome, Planner
from lms3d.engine.step_model.study import Study


class Off(Planner):
    """Changes nothing."""

    rule = "the planner off changes nothing"

    def plan(self, study: Study) -> Outcome:
        return Outcome(plan=Plan(), reported_planner="off")

    def is_noop(self, study: Study) -> bool:
        return True

    def no_other_plan(self, parameters: Any) -> str:
        return ""
