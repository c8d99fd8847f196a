"""A request, and what planners and predictions ask about its step, each worked out once. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar, cast

from lms3d.engine import liveness, tuning
from lms3d.engine.cost import step_seconds
from lms3d.engine.effort import Account
from lms3d.engine.prediction import Figures
from lms3d.engine.request import StepRequest
from lms3d.engine.step_model import figures, order
from lms3d.engine.step_model.problem import Problem, reduce
from lms3d.engine.step_model.schedule import Schedule, build

_MIB = 1 << 20

Result = TypeVar("Result")


class Study:
    """The request for one plan, and the step behind it. account: what planning has cost so far.

    Each property is computed when it is first read, within milliseconds. Sizes are in bytes, times in seconds.
    """

    def __init__(self, request: StepRequest) -> None:
        self.request, self.account = request, Account()
        self.account.charge_graph(2 * len(request.graph.ops))
        self._results: dict[Callable[[Study], Any], Any] = {}

    def once(self, work: Callable[[Study], Result]) -> Result:
        """The result of `work(self)`, which runs the first time alone. For what one planner asks about a step and others do not."""
        if work not in self._results:
            self._results[work] = work(self)
        return cast(Result, self._results[work])

    @cached_property
    def traced(self) -> Problem:
        """The step in the order of its trace."""
        return reduce(self.request.graph, self.request.machine)

    @cached_property
    def ordered(self) -> Problem:
        """The step in an order with a lower peak."""
        return reduce(order.branch_ends_first(self.request.graph), self.request.machine)

    @cached_property
    def problem(self) -> Problem:
        """The step in the order to plan for: the traced one if the step fits as soon as that order is held, else the better one."""
        request = self.request
        enough = request.settings.pool.fits(self.traced, self._traced_schedule, request.limit_bytes)
        return self.traced if enough else self.ordered

    @cached_property
    def _traced_schedule(self) -> Schedule:
        """The schedule that moves nothing, in the traced order."""
        return build(self.traced, {}, self.request.machine)

    @cached_property
    def unedited_problem(self) -> Problem:
        """The step in the order that TensorFlow may choose without a plan: of two likely orders the one with the higher peak."""
        early = order.ready_first(self.request.graph)
        if liveness.peak_bytes(early) <= liveness.peak_bytes(self.request.graph):
            return self.traced
        return reduce(early, self.request.machine)

    @cached_property
    def unedited_schedule(self) -> Schedule:
        """The schedule of the step without LMS."""
        if self.unedited_problem is self.traced:
            return self._traced_schedule
        return build(self.unedited_problem, {}, self.request.machine)

    @cached_property
    def unedited_limit_bytes(self) -> int:
        """The smallest limit at which the step is trusted to run without LMS, in whole MiB."""
        pool = self.request.settings.pool
        needed = pool.needed_bytes(self.unedited_problem, self.unedited_schedule, planned=False)
        return -int(-needed * tuning.UNORDERED // _MIB) * _MIB

    @cached_property
    def unedited_figures(self) -> Figures:
        """The figures of the step without LMS."""
        seconds = step_seconds(self.request.graph, self.request.machine)
        return figures.unedited(self.unedited_problem, self.unedited_schedule, seconds)
