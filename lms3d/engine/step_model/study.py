"""A request, and what planners and predictions ask about its step, each worked out once. No TensorFlow here."""

from __future__ import annotations

from functools import cached_property

from lms3d.engine import liveness, tuning
from lms3d.engine.cost import step_seconds
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import floor
from lms3d.engine.planners.hybrid import ladder as ladders
from lms3d.engine.prediction import Figures
from lms3d.engine.request import StepRequest
from lms3d.engine.step_model import figures, fit, order
from lms3d.engine.step_model.problem import Problem, reduce
from lms3d.engine.step_model.schedule import Schedule, build

_MIB = 1 << 20


class Study:
    """account: what planning for this request has cost so far.

    The rest is worked out when it is first asked for: milliseconds, but `lowest`. Sizes are in bytes, times in seconds.
    """

    def __init__(self, request: StepRequest) -> None:
        self.request, self.account = request, Account()
        self.account.charge_graph(2 * len(request.graph.ops))

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
        """The order to plan for: the traced one where holding it is enough, since no other is worth a change then."""
        request, schedule = self.request, self._held
        held = fit.Solution(self.traced, {}, schedule, request.limit_bytes, schedule.peak_bytes, True)
        return self.traced if fit.fits(held, request.settings.pool) else self.ordered

    @cached_property
    def _held(self) -> Schedule:
        """Nothing moved, in the traced order."""
        return build(self.traced, {}, self.request.machine)

    @cached_property
    def unheld(self) -> Problem:
        """The step in the order that TensorFlow may choose where none is held: of two likely ones that with the higher peak."""
        early = order.at_once_first(self.request.graph)
        if liveness.peak_bytes(early) <= liveness.peak_bytes(self.request.graph):
            return self.traced
        return reduce(early, self.request.machine)

    @cached_property
    def unedited(self) -> Schedule:
        """The step as it is: the events of `unheld`, the bytes that are live at each, and the seconds of the whole."""
        return self._held if self.unheld is self.traced else build(self.unheld, {}, self.request.machine)

    @cached_property
    def unedited_limit_bytes(self) -> int:
        """The smallest limit at which the unedited step is trusted to run, in whole MiB."""
        needed = fit.needed_bytes(self.unheld, self.unedited, self.request.settings.pool, planned=False)
        return -int(-needed * tuning.UNORDERED // _MIB) * _MIB

    @cached_property
    def unedited_figures(self) -> Figures:
        """Of the step as it is: peak and timeline in bytes, seconds of a step."""
        seconds = step_seconds(self.request.graph, self.request.machine)
        return figures.unedited(self.unheld, self.unedited, seconds)

    @cached_property
    def ladder(self) -> ladders.Ladder:
        """The plans of `problem` by budget, for a step of many pieces."""
        return self._ladder(self.problem)

    def _ladder(self, problem: Problem) -> ladders.Ladder:
        return ladders.Ladder(problem, self.request.machine, self.account)

    @cached_property
    def lowest(self) -> fit.Solution:
        """The plan that needs the smallest limit. Takes seconds. Of `ordered` alone: in the traced order the step fits."""
        settings = self.request.settings
        if ladders.applies(self.ordered):
            steps = self.ladder if self.problem is self.ordered else self._ladder(self.ordered)
            return ladders.lowest(steps, pool=settings.pool)
        return floor.lowest(self.ordered, self.request.machine, pool=settings.pool, account=self.account)
