"""The promises of planners for any step. No TensorFlow here.

FUZZ-1  Every plan keeps the promises of `plan_checks`, and a plan that is predicted to fit is predicted to stay within its limit.
FUZZ-2  If a limit has a plan, every larger one has: exactly without a pool, and from the floor on in a pool.
FUZZ-3  Under a tighter limit no more bytes are live at the peak, and under a larger limit a step is not slower. `SLACK` is allowed:
        a search that ends before it has seen all plans is not monotone, and which pieces fit in a pool is chance.
FUZZ-4  Equal questions get equal plans.
FUZZ-5  The simulator and the ledger say what `reference` says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lms3d.engine import liveness
from lms3d.engine.cost import Machine
from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan
from lms3d.engine.planners import tflms
from lms3d.engine.planning import make_plan
from lms3d.engine.prediction import Prediction
from lms3d.engine.request import Settings, StepRequest
from lms3d.engine.step_model import ledger
from lms3d.engine.step_model.pool import POOLS
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.step_model.study import Study
from lms3d.errors import DoesNotFit
from tests.stress import reference
from tests.stress.plan_checks import check_plan

ROUNDING = 1e-9
SLACK = {"none": 0.05, "single": 0.25, "split": 0.25}
"""Share of time by which the plan for a larger limit may be slower, by pool."""


@dataclass(frozen=True)
class Answer:
    """A limit and its plan: None if nothing fits."""

    limit_bytes: int
    plan: Plan | None
    report: Prediction | None

    @property
    def live_bytes(self) -> int:
        """The bytes that are live at the peak, without a pool's waste."""
        assert self.report is not None
        timeline = self.report.timeline_bytes if self.report.rewritten else ()
        return max(timeline, default=self.report.unedited_peak_bytes)


def answers(request: StepRequest, limits: Sequence[int]) -> list[Answer]:
    """An answer for each limit, in their order."""
    return [_answer(request.under(limit_bytes=limit)) for limit in sorted(limits)]


def _answer(request: StepRequest) -> Answer:
    smallest, limit = None, request.limit_bytes
    try:
        return Answer(limit, *make_plan(request))
    except DoesNotFit as error:
        smallest = error.smallest_limit_bytes
    assert smallest is None or smallest > limit, "the smallest limit that would do is no larger than this one"
    return Answer(limit, None, None)


def check_limits(
    graph: StepGraph, machine: Machine, pool: str, shares: Sequence[float], effort_seconds: float | None
) -> list[Answer]:
    """FUZZ-1 to FUZZ-3 for the default planner. shares: 0 is the floor, 1 the limit that needs no plan."""
    _, unedited = make_plan(Settings(limit_bytes=1 << 40, pool=POOLS[pool]).request(graph, machine))
    fit = unedited.unedited_limit_bytes
    floor = unedited.floor_bytes or fit
    limits = [max(1, int(floor + share * (fit - floor))) for share in shares]
    request = Settings(limit_bytes=1, pool=POOLS[pool]).request(
        graph, machine, with_floor=False, effort_seconds=effort_seconds
    )
    found = answers(request, limits)
    for answer in found:
        if answer.plan is None or answer.report is None:
            continue
        check_plan(graph, answer.plan)
        if answer.report.rewritten:
            assert answer.report.predicted_peak_bytes <= answer.limit_bytes
    _every_limit_from_the_floor_has_a_plan(found, floor)
    _more_memory_is_no_worse(found, SLACK[pool])
    return found


def _every_limit_from_the_floor_has_a_plan(found: Sequence[Answer], floor: int) -> None:
    without = [a.limit_bytes for a in found if a.plan is None]
    assert not without or max(without) < floor, (without, floor)
    least = min((a.limit_bytes for a in found if a.plan is not None), default=0)
    assert not without or max(without) < max(least, floor)


def _more_memory_is_no_worse(found: Sequence[Answer], slack: float) -> None:
    fastest, lowest = float("inf"), 0
    for a in found:
        if a.report is None:
            continue
        told = [(b.limit_bytes, b.live_bytes, b.report.predicted_step_seconds) for b in found if b.report]
        assert a.live_bytes >= lowest * (1 - slack), f"the tighter limit has the higher peak: {told}"
        assert a.report.predicted_step_seconds <= fastest * (1 + slack) + ROUNDING, f"more memory is slower: {told}"
        fastest, lowest = min(fastest, a.report.predicted_step_seconds), max(lowest, a.live_bytes)


def check_planner(graph: StepGraph, machine: Machine, planner: str, share: float) -> str:
    """FUZZ-1, FUZZ-2 and FUZZ-4 for another planner, at a limit and at twice that."""
    peak = Study(Settings(limit_bytes=1).request(graph, machine)).unedited_schedule.peak_bytes
    request = Settings(limit_bytes=1, planner=planner).request(graph, machine, with_floor=False)
    found = answers(request, [max(1, int(peak * s)) for s in (share, 2 * share)])
    assert found[0].plan is None or found[1].plan is not None
    for answer in found:
        if answer.plan is not None:
            edited = check_plan(graph, answer.plan)
            assert planner != "tflms" or simulate(edited, machine).peak_bytes <= answer.limit_bytes
    return said(found)


def check_simulator(graph: StepGraph, machine: Machine, parameters: tflms.Parameters) -> str:
    """FUZZ-5, for a step and for what TFLMS makes of it, which also keeps to the threshold."""
    plan = tflms.build(graph, parameters, mapped=machine.mapped)
    edited = check_plan(graph, plan)
    distance = [graph.levels[c] - graph.levels[s.tensor.rpartition(":")[0]] for s in plan.swap_ins for c in s.consumers]
    assert all(levels > parameters.swapout_threshold for levels in distance)
    for step in (graph, edited):
        assert liveness.live_bytes(step).tolist() == reference.live_bytes(step)
        run, (peak_bytes, seconds) = simulate(step, machine), reference.run(step, machine)
        assert run.peak_bytes == peak_bytes
        assert abs(run.seconds - seconds) <= ROUNDING * max(1.0, seconds)
    return "checked"


def check_ledger(spans: Sequence[ledger.Block], events: int) -> None:
    """FUZZ-5, by adding up span by span."""
    live = np.array([sum(s.bytes for s in spans if s.start <= e <= s.end) for e in range(events)], np.int64)
    assert ledger.live_bytes(spans, events).tolist() == live.tolist()
    starts, ends_at = ledger.by_event(spans, events)
    for e in range(events):
        assert [spans[i] for i in starts[e]] == [s for s in spans if s.start == e]
        assert [spans[i] for i in ends_at[e]] == [s for s in spans if s.end == e]
        assert sum(s.bytes for s in ledger.at(spans, e)) == live[e]


def said(found: Sequence[Answer]) -> str:
    """FUZZ-4: equal for equal answers, in every process; "" if no plan changes anything."""
    told = [[a.limit_bytes, a.plan and a.plan.to_dict(), a.report and a.report.predicted_step_seconds] for a in found]
    planned = any(a.plan is not None and not a.plan.empty for a in found)
    return json.dumps(told, sort_keys=True) if planned else ""
