"""What planners promise for any step. No TensorFlow here.

FUZZ-1  Every plan keeps the promises of `plan_checks`, and a plan that is predicted to fit is predicted to stay within its limit.
FUZZ-2  Where a limit has a plan, so has every larger one: exactly without a pool, and from the floor on in a pool.
FUZZ-3  Of a tighter limit the bytes that are live at the peak are never more; nor is a step under a larger limit slower. In both
        `SLACK` is allowed: a search that ends before it has seen all plans is not monotone, and which pieces fit in a pool is
        chance.
FUZZ-4  Equal questions get equal plans.
FUZZ-5  The simulator and the ledger say what `reference` says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.fuzzing import reference
from experiments.fuzzing.plan_checks import check_plan
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
from lms3d.errors import DoesNotFit

ROUNDING = 1e-9
SLACK = {"none": 0.05, "single": 0.25, "split": 0.25}
"""Share of time by which the plan for a larger limit may be slower, by pool."""


@dataclass(frozen=True)
class Answer:
    """A limit and what was planned for it. plan: None where nothing fits."""

    limit_bytes: int
    plan: Plan | None
    report: Prediction | None

    @property
    def live_bytes(self) -> int:
        """At the peak, without what a pool wastes."""
        assert self.report is not None
        timeline = self.report.timeline_bytes if self.report.rewritten else ()
        return max(timeline, default=self.report.unedited_peak_bytes)


def ends(graph: StepGraph, machine: Machine, pool: str) -> tuple[int, int]:
    """The floor, and the smallest limit that needs no plan."""
    _, report = make_plan(Settings(limit_bytes=1 << 40, pool=POOLS[pool]).request(graph, machine))
    return report.floor_bytes or report.unedited_limit_bytes, report.unedited_limit_bytes


def answers(request: StepRequest, limits: Sequence[int]) -> list[Answer]:
    """One per limit, in order."""
    return [_answer(request.under(limit_bytes=limit)) for limit in sorted(limits)]


def _answer(request: StepRequest) -> Answer:
    smallest, limit = None, request.limit_bytes
    try:
        return Answer(limit, *make_plan(request))
    except DoesNotFit as error:
        smallest = error.smallest_limit_bytes
    assert smallest is None or smallest > limit, (
        "the smallest limit that would do is no larger than the one that does not"
    )
    return Answer(limit, None, None)


def check_limits(
    graph: StepGraph, machine: Machine, pool: str, shares: Sequence[float], effort_seconds: float | None
) -> list[Answer]:
    """FUZZ-1 to FUZZ-3 for the default planner. shares: 0 is the floor, 1 what is needed without a plan."""
    floor, fit = ends(graph, machine, pool)
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


def check_simulator(graph: StepGraph, machine: Machine, parameters: tflms.Parameters) -> None:
    """FUZZ-5, for a step and for what TFLMS makes of it."""
    edited = check_plan(graph, tflms.build(graph, parameters, mapped=machine.mapped))
    for step in (graph, edited):
        assert liveness.live_bytes(step).tolist() == reference.live_bytes(step)
        run, (peak_bytes, seconds) = simulate(step, machine), reference.run(step, machine)
        assert run.peak_bytes == peak_bytes
        assert abs(run.seconds - seconds) <= ROUNDING * max(1.0, seconds)


def check_ledger(spans: Sequence[ledger.Block], events: int) -> None:
    """FUZZ-5, by adding up span by span."""
    live = np.array([sum(s.bytes for s in spans if s.start <= e <= s.end) for e in range(events)], np.int64)
    assert ledger.live_bytes(spans, events).tolist() == live.tolist()
    starts, ends_at = ledger.by_event(spans, events)
    for e in range(events):
        assert [spans[i] for i in starts[e]] == [s for s in spans if s.start == e]
        assert [spans[i] for i in ends_at[e]] == [s for s in spans if s.end == e]
        assert sum(s.bytes for s in ledger.at(spans, e)) == live[e]


def digest(found: Sequence[Answer]) -> str:
    """FUZZ-4: equal for equal answers, in every process."""
    told = [[a.limit_bytes, a.plan and a.plan.to_dict(), a.report and a.report.predicted_step_seconds] for a in found]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
