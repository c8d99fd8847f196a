"""A request in, a plan and its prediction out. No TensorFlow here.

`plan_cache.cached_plan` is the same with a memory. Training, `lms3d.plan_step`, `LMS.rewrite` and the sweep call that one.
"""

from __future__ import annotations

import time

from lms3d.engine import liveness
from lms3d.engine.cost import Machine, copying_seconds, step_seconds
from lms3d.engine.plan import Plan
from lms3d.engine.planners import PLANNERS, Outcome, Planner
from lms3d.engine.prediction import Figures, Prediction
from lms3d.engine.request import StepRequest
from lms3d.engine.step_model import alternatives
from lms3d.engine.step_model.planned_step import PlannedStep
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.step_model.study import Study


def make_plan(request: StepRequest) -> tuple[Plan, Prediction]:
    """The plan for one step. If no plan fits: DoesNotFit, with the smallest limit that would do."""
    started = time.monotonic()
    study = Study(request)
    planner = PLANNERS[request.settings.planner]()
    outcome = planner.plan(study)
    floor_bytes = _floor_bytes(planner, study, outcome) if request.with_floor else None
    return outcome.plan, _prediction(study, outcome, floor_bytes, started)


def is_noop(request: StepRequest) -> bool:
    """Whether `make_plan` will give an empty plan, which needs no costs of single ops."""
    return PLANNERS[request.settings.planner]().is_noop(Study(request))


def floor_bytes(request: StepRequest) -> int:
    """The smallest limit in bytes that a plan for the step is found for. Takes seconds."""
    return PLANNERS[request.settings.planner]().floor(Study(request))


def _floor_bytes(planner: Planner, study: Study, outcome: Outcome) -> int:
    known = [study.request.limit_bytes] if outcome.within_limit else []
    return min(planner.floor(study), study.unedited_limit_bytes, *known)


def _prediction(study: Study, outcome: Outcome, floor_bytes: int | None, started: float) -> Prediction:
    request, plan = study.request, outcome.plan
    planned = None if plan.empty else PlannedStep.simulated(request.graph, plan, request.machine)
    after, before = _after_and_before(study, outcome, planned)
    return Prediction(
        step=request.step,
        planner=outcome.reported_planner or plan.planner,
        rewritten=not plan.empty,
        tier=request.settings.tier,
        limit_bytes=request.limit_bytes,
        unedited_peak_bytes=before.peak_bytes,
        predicted_peak_bytes=after.peak_bytes,
        unedited_limit_bytes=study.unedited_limit_bytes,
        floor_bytes=floor_bytes,
        unedited_step_seconds=before.step_seconds,
        predicted_step_seconds=after.step_seconds,
        predicted_stall_seconds=after.stall_seconds,
        lower_bound_seconds=_lower_bound_seconds(plan, request.machine, before.step_seconds),
        swapped_out_bytes=plan.swapped_out_bytes,
        swapped_in_bytes=plan.swapped_in_bytes,
        recomputed_ops=len(plan.recomputes),
        unedited_timeline_bytes=before.timeline_bytes,
        timeline_bytes=after.timeline_bytes,
        timeline_seconds=after.timeline_seconds,
        decisions=alternatives.decisions(study.problem, request.machine, after, planned, rule=_rule(study, plan)),
        peak_at=after.peak_at,
        peak_tensors=after.peak_tensors,
        parameters=after.parameters or dict(plan.parameters or {}),
        planning_seconds=time.monotonic() - started,
        effort_seconds=study.account.seconds,
        evaluations=study.account.schedules + study.account.replays,
    )


def _lower_bound_seconds(plan: Plan, machine: Machine, computing_seconds: float) -> float:
    """The seconds of a step that hides everything: computing and both directions of the link run side by side from end to end."""
    return max(
        computing_seconds,
        plan.swapped_out_bytes / machine.swap_out_bytes_per_second,
        plan.swapped_in_bytes / machine.swap_in_bytes_per_second,
    )


def _rule(study: Study, plan: Plan) -> str:
    """How the planner has decided, if not by costs. That of hybrid may take TFLMS's plan."""
    if plan.empty and study.unedited_limit_bytes <= study.request.limit_bytes:
        return "the step fits in the limit as it is"
    name = plan.planner if plan.planner in PLANNERS else study.request.settings.planner
    return PLANNERS[name].rule or ("nothing has to leave" if plan.empty else "")


def _after_and_before(study: Study, outcome: Outcome, planned: PlannedStep | None) -> tuple[Figures, Figures]:
    """The figures of the step under the plan and without it. If the planner has no figures of its own, the plan is simulated."""
    before = study.unedited_figures
    if planned is None:
        return before, before
    if outcome.figures is not None:
        return outcome.figures, before
    return _simulated(study, planned)


def _simulated(study: Study, planned: PlannedStep) -> tuple[Figures, Figures]:
    request, before = study.request, study.unedited_figures
    graph, machine = request.graph, request.machine
    plan, run, unedited = planned.plan, planned.run, simulate(graph, machine)
    longer = run.seconds - unedited.seconds
    ordered = {name for edge in plan.control_edges for name in edge}
    nodes = len(plan.swap_outs) + len(plan.swap_ins)
    copying = copying_seconds(machine, plan.swapped_out_bytes, plan.swapped_in_bytes, nodes)
    after = Figures(
        peak_bytes=request.settings.pool.place_simulated(planned.graph, run, request.limit_bytes).peak_bytes,
        step_seconds=step_seconds(graph, machine, ordered=ordered) + longer + copying,
        stall_seconds=max(0.0, longer),
        timeline_bytes=run.timeline_bytes,
        timeline_seconds=run.timeline_seconds,
    )
    return after, Figures(
        peak_bytes=max(before.peak_bytes, unedited.peak_bytes),
        step_seconds=before.step_seconds,
        timeline_bytes=tuple(int(b) for b in liveness.live_bytes(graph)),
    )
