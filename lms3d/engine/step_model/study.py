"""A request, and what planners and predictions ask about its step, each worked out once. No TensorFlow here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar, cast

from lms3d.engine import liveness, tuning
from lms3d.engine.cost import Machine, step_seconds
from lms3d.engine.effort import Account
from lms3d.engine.ir import StepGraph
from lms3d.engine.prediction import Figures
from lms3d.engine.request import StepRequest
from lms3d.engine.step_model import figures, order
from lms3d.engine.step_model.pool import Pool
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
    def _orders(self) -> _Orders:
        return _orders_of(self.request.graph, self.request.machine)

    @property
    def traced(self) -> Problem:
        """The step in the order of its trace."""
        return self._orders.traced

    @property
    def ordered(self) -> Problem:
        """The step in an order with a lower peak."""
        return self._orders.ordered

    @cached_property
    def problem(self) -> Problem:
        """The step in the order to plan for: the traced one if the step fits as soon as that order is held, else the better one."""
        request = self.request
        enough = request.settings.pool.fits(self.traced, self._orders.traced_schedule, request.limit_bytes)
        return self.traced if enough else self.ordered

    @property
    def unedited_problem(self) -> Problem:
        """The step in the order that TensorFlow may choose without a plan: of two likely orders the one with the higher peak."""
        return self._orders.unedited

    @property
    def unedited_schedule(self) -> Schedule:
        """The schedule of the step without LMS."""
        return self._orders.unedited_schedule

    @property
    def unedited_limit_bytes(self) -> int:
        """The smallest limit at which the step is trusted to run without LMS, in whole MiB."""
        return -int(-self._orders.unedited_bytes(self.request.settings.pool) * tuning.UNORDERED // _MIB) * _MIB

    @cached_property
    def unedited_figures(self) -> Figures:
        """The figures of the step without LMS."""
        seconds = step_seconds(self.request.graph, self.request.machine)
        return figures.unedited(self.unedited_problem, self.unedited_schedule, seconds)


class _Orders:
    """A step in the orders that studies ask about: the same for each limit, planner and effort."""

    def __init__(self, graph: StepGraph, machine: Machine) -> None:
        self.graph, self.machine = graph, machine
        self._needed: dict[Pool, int] = {}

    @cached_property
    def traced(self) -> Problem:
        return reduce(self.graph, self.machine)

    @cached_property
    def traced_schedule(self) -> Schedule:
        """The schedule that moves nothing, in the traced order."""
        return build(self.traced, {}, self.machine)

    @cached_property
    def ordered(self) -> Problem:
        return reduce(order.branch_ends_first(self.graph), self.machine)

    @cached_property
    def unedited(self) -> Problem:
        early = order.ready_first(self.graph)
        if liveness.peak_bytes(early) <= liveness.peak_bytes(self.graph):
            return self.traced
        return reduce(early, self.machine)

    @cached_property
    def unedited_schedule(self) -> Schedule:
        return self.traced_schedule if self.unedited is self.traced else build(self.unedited, {}, self.machine)

    def unedited_bytes(self, pool: Pool) -> int:
        """The memory that the step takes from a pool without LMS."""
        if pool not in self._needed:
            self._needed[pool] = pool.needed_bytes(self.unedited, self.unedited_schedule, planned=False)
        return self._needed[pool]


_RECENT: deque[_Orders] = deque(maxlen=2)


def _orders_of(graph: StepGraph, machine: Machine) -> _Orders:
    """The orders for these two objects. The latest two are kept: a command makes several studies of its step."""
    for known in tuple(_RECENT):
        if known.graph is graph and known.machine is machine:
            return known
    _RECENT.appendleft(made := _Orders(graph, machine))
    return made
