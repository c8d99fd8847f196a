"""Step + limit + settings -> plan and report: the thinking half of the engine in one call. No TensorFlow here."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lms3d.errors import DoesNotFit
from lms3d.keras_step.report import Decision, Report
from lms3d.swap import edit, liveness, order
from lms3d.swap.cost import Machine, step_seconds
from lms3d.swap.effort import Account
from lms3d.swap.ir import StepGraph, producer_name
from lms3d.swap.plan import Plan
from lms3d.swap.planners import tflms
from lms3d.swap.planners.hybrid import emit, floor, planner, search
from lms3d.swap.planners.hybrid.problem import Problem, reduce
from lms3d.swap.planners.hybrid.schedule import Mode, Schedule, build
from lms3d.swap.simulate import simulate
from lms3d.units import format_size

# Without a fixed order the executor runs ready ops side by side: the real peak is a little above a serial one.
UNORDERED = 1.05
COMPARED_OPS = 500  # TFLMS's search simulates a step tens of times; larger ones are not compared with it
NAMED_TENSORS = 3
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to plan. `planner`: "hybrid" (swap and recompute under the limit), "tflms" (levels) or "off".

    pool: how the device's memory is handed out, one of `bfc.POOLS`.
    effort_seconds: what planning may cost, a class of `effort`; None: as much as it can use. A plan is found all the same.
    """

    limit_bytes: int
    tier: str = "disk"
    planner: str = "hybrid"
    pool: str = "none"
    tflms: tflms.Parameters = field(default_factory=tflms.Parameters)
    effort_seconds: float | None = None


def decide(
    graph: StepGraph, settings: Settings, machine: Machine, *, step: str = "train", with_floor: bool = True
) -> tuple[Plan, Report]:
    """The plan for one step, and the report on it, measured fields empty.

    with_floor: also find the smallest limit that any plan fits in, where planning did not ask for it (takes seconds).
    Raises DoesNotFit, with the smallest limit, where no plan fits.
    """
    started = time.monotonic()
    account = Account()
    account.read(2 * len(graph.ops))
    traced = reduce(graph, machine)
    before = build(traced, {}, machine)
    unedited = unedited_limit(traced, before, settings.pool)
    ordered = reduce(order.branch_ends_first(graph), machine)
    as_traced = search.Solution(traced, {}, before, settings.limit_bytes, before.peak_bytes, True)
    # Where it is enough to hold the traced order, no other order is worth a move.
    problem = traced if search.fits(as_traced, settings.pool) else ordered
    # Asked for of `ordered` alone: in the traced order the step fits as it is.
    lowest = functools.cache(lambda: floor.lowest(ordered, machine, pool=settings.pool, account=account))
    if settings.planner == "hybrid":
        plan, solution = _hybrid(graph, problem, unedited, settings, machine, lowest, account)
    else:
        plan, solution = (
            (Plan() if settings.planner == "off" else tflms.make(graph, settings.tflms, settings.limit_bytes, machine)),
            None,
        )
    floor_bytes = None
    if with_floor:
        floor_bytes = min(lowest().limit_bytes, unedited)
        if not plan.empty and settings.planner == "hybrid":  # made for this limit
            floor_bytes = min(floor_bytes, settings.limit_bytes)
    report = Report(
        step=step,
        planner=plan.planner if settings.planner != "off" else "off",
        tier=settings.tier,
        limit_bytes=settings.limit_bytes,
        unedited_peak_bytes=before.peak_bytes,
        predicted_peak_bytes=before.peak_bytes,
        unedited_limit_bytes=unedited,
        floor_bytes=floor_bytes,
        unedited_step_seconds=step_seconds(graph, machine),
        predicted_step_seconds=step_seconds(graph, machine),
        swapped_out_bytes=plan.swapped_out_bytes,
        swapped_in_bytes=plan.swapped_in_bytes,
        recomputed_ops=len(plan.recomputes),
        unedited_timeline_bytes=tuple(int(b) for b in before.live_bytes),
        timeline_bytes=tuple(int(b) for b in before.live_bytes),
        timeline_seconds=tuple(float(s) for s in np.concatenate([[0.0], traced.seconds.cumsum()[:-1]]))
        if len(traced.anchors)
        else (),
        decisions=_decisions(problem, plan),
        parameters=dict(plan.parameters or {}),
    )
    if solution is not None:
        _describe_schedule(report, solution, machine)
    elif not plan.empty:
        _describe_simulation(report, graph, plan, machine)
    else:
        _describe_peak(report, traced, before)
    report.planning_seconds = time.monotonic() - started
    report.effort_seconds, report.evaluations = account.seconds, account.schedules + account.replays
    return plan, report


def fits_unedited(graph: StepGraph, settings: Settings, machine: Machine) -> bool:
    """True where `decide` will leave the step alone."""
    if settings.planner != "hybrid":
        return settings.planner == "off"
    problem = reduce(graph, machine)
    return unedited_limit(problem, build(problem, {}, machine), settings.pool) <= settings.limit_bytes


def unedited_limit(problem: Problem, before: Schedule, pool: str) -> int:
    """The smallest limit at which an unedited step is trusted to run, in whole MiB."""
    return -int(-search.needed_bytes(problem, before, pool, planned=False) * UNORDERED // _MIB) * _MIB


def _hybrid(
    graph: StepGraph,
    problem: Problem,
    unedited: int,
    settings: Settings,
    machine: Machine,
    lowest: Callable[[], search.Solution],
    account: Account,
) -> tuple[Plan, search.Solution | None]:
    if unedited <= settings.limit_bytes or not problem.anchors:
        return Plan(), None
    plain = _tflms_plan(graph, settings, machine)
    solution = _solution(problem, settings, machine, lowest, account)
    if plain is not None:
        if solution is not None and emit.emit(solution).swapped_out_bytes > plain.swapped_out_bytes:
            solution = _solution(problem, settings, machine, lowest, account, plain.swapped_out_bytes)
        if solution is None or _simulated_peak(graph, emit.emit(solution), machine) > settings.limit_bytes:
            return plain, None
    if solution is None:
        smallest = min(lowest().limit_bytes, unedited)
        raise does_not_fit(settings.limit_bytes, smallest, unedited, _peak_tensors(lowest().problem, lowest().schedule))
    return emit.emit(solution), solution


def _solution(
    problem: Problem,
    settings: Settings,
    machine: Machine,
    lowest: Callable[[], search.Solution],
    account: Account,
    most_swapped_bytes: int | None = None,
) -> search.Solution | None:
    """What fits in the limit; None at once where the largest op alone does not. What little effort does not find, all does."""
    if search.usable_bytes(problem, settings.limit_bytes, settings.pool) < search.working_set_bytes(problem):
        return None
    effort = settings.effort_seconds
    for seconds in (None,) if effort is None else (effort - account.seconds, None):
        solution = planner.solve(
            problem,
            settings.limit_bytes,
            machine,
            pool=settings.pool,
            seconds=seconds,
            most_swapped_bytes=most_swapped_bytes,
            lowest=lowest,
            account=account,
        )
        if solution.fits:
            return solution
    return None


def _tflms_plan(graph: StepGraph, settings: Settings, machine: Machine) -> Plan | None:
    """TFLMS's auto-tuned plan for a small step, the one to beat; None where it has none.

    Only where bytes are all that counts: TFLMS knows nothing of a pool's pieces. Nor is its word taken that nothing
    need be done.
    """
    if settings.pool != "none" or len(graph.ops) > COMPARED_OPS:
        return None
    try:
        plan = tflms.autotune(graph, tflms.Parameters(), settings.limit_bytes, machine)
    except DoesNotFit:
        return None
    return None if plan.empty else plan


def _simulated_peak(graph: StepGraph, plan: Plan, machine: Machine) -> int:
    """By the simulator that judged TFLMS's plan, which also knows what the planned order does not hold."""
    return simulate(edit.apply(graph, plan), machine).peak_bytes


def does_not_fit(
    limit_bytes: int,
    floor_bytes: int,
    unedited_bytes: int | None = None,
    peak_tensors: tuple[tuple[str, int], ...] = (),
) -> DoesNotFit:
    """The error of a limit below the floor; `peak_tensors`: the largest at the peak of the lowest plan."""
    without = f" and {format_size(unedited_bytes)} without" if unedited_bytes else ""
    largest = ", ".join(f"{name} ({format_size(size)})" for name, size in peak_tensors[:NAMED_TENSORS])
    needed = f"; largest at its peak: {largest}" if largest else ""
    return DoesNotFit(
        f"the step does not fit in {format_size(limit_bytes)}, not even with LMS: the smallest memory limit that would do is "
        f"{format_size(floor_bytes)} with LMS{without}{needed}; raise --memory-limit or lower --resolution or --batch-size",
        floor_bytes,
    )


def _decisions(problem: Problem, plan: Plan) -> tuple[Decision, ...]:
    """Every large tensor and what happens to it; swapped tensors outside of the planner's view too."""
    swapped: dict[str, int] = {}
    for back in plan.swap_ins:
        swapped[back.tensor] = swapped.get(back.tensor, 0) + 1
    recomputed: dict[str, int] = {}
    for again in plan.recomputes:
        recomputed[again.tensor] = recomputed.get(again.tensor, 0) + 1
    sizes = {b.root: b.bytes for b in problem.buffers} | {s.tensor: s.bytes for s in plan.swap_outs}
    rows = []
    for tensor, size in sizes.items():
        ins, made = swapped.get(tensor, 0), recomputed.get(tensor, 0)
        action = "both" if ins and made else "swap" if ins else "recompute" if made else "keep"
        rows.append(Decision(tensor=tensor, bytes=size, action=action, copies=ins + made))
    return tuple(rows)


def _describe_schedule(report: Report, solution: search.Solution, machine: Machine) -> None:
    schedule, problem = solution.schedule, solution.problem
    seconds = [problem.seconds_of(e) for e in schedule.events]
    report.predicted_peak_bytes = solution.peak_bytes
    in_order = step_seconds(problem.graph, machine, ordered=frozenset(problem.anchors))
    moving = (
        report.swapped_out_bytes / machine.swap_out_bytes_per_second
        + report.swapped_in_bytes / machine.swap_in_bytes_per_second
    )
    report.predicted_step_seconds = (
        in_order + schedule.seconds - float(problem.seconds.sum()) + machine.swap_share * moving
    )
    report.predicted_stall_seconds = max(0.0, schedule.stall_seconds)
    report.timeline_bytes = tuple(int(b) for b in schedule.live_bytes)
    report.timeline_seconds = tuple(float(s) for s in np.concatenate([[0.0], np.cumsum(seconds)[:-1]]))
    report.parameters = {"tensors kept, swapped, recomputed, both": _counts(solution)}
    if solution.bound_seconds:
        above = schedule.cost_seconds / solution.bound_seconds - 1
        report.parameters["at most above the best plan"] = f"{max(above, 0.0):.1%}"
    _describe_peak(report, problem, schedule)


def _counts(solution: search.Solution) -> str:
    modes: dict[int, set[Mode]] = {}
    for copy in solution.schedule.copies:
        if copy.number:
            modes.setdefault(copy.buffer, set()).add(copy.mode)
    moved = list(modes.values())
    swapped, recomputed = moved.count({Mode.SWAP}), moved.count({Mode.RECOMPUTE})
    both = len(moved) - swapped - recomputed
    return f"{len(solution.problem.buffers) - len(moved)}, {swapped}, {recomputed}, {both}"


def _describe_peak(report: Report, problem: Problem, schedule: Schedule) -> None:
    if not problem.anchors:
        return
    event = int(schedule.live_bytes.argmax())
    at = schedule.events[event]
    report.peak_at = (
        problem.anchors[at.anchor] if at.is_anchor else f"recompute {producer_name(problem.buffers[at.buffer].root)}"
    )
    largest = _peak_tensors(problem, schedule)
    small = problem.base_bytes + int(problem.small_bytes[at.anchor])
    report.peak_tensors = (*largest, ("(weights, slots, batches and small tensors)", small))


def _peak_tensors(problem: Problem, schedule: Schedule) -> tuple[tuple[str, int], ...]:
    """(tensor, bytes) of the large buffers that are live at the peak, the largest first."""
    event = int(schedule.live_bytes.argmax())
    live = [c for c in schedule.copies if c.start <= event <= c.end and c.bytes]
    sizes = {problem.buffers[c.buffer].root: c.bytes for c in live}
    return tuple(sorted(sizes.items(), key=lambda item: -item[1]))


def _describe_simulation(report: Report, graph: StepGraph, plan: Plan, machine: Machine) -> None:
    edited = edit.apply(graph, plan)
    run = simulate(edited, machine)
    unedited = simulate(graph, machine)
    report.unedited_peak_bytes = max(report.unedited_peak_bytes, unedited.peak_bytes)
    report.predicted_peak_bytes = run.peak_bytes
    report.predicted_step_seconds += run.seconds - unedited.seconds
    report.predicted_stall_seconds = max(0.0, run.seconds - unedited.seconds)
    report.timeline_bytes, report.timeline_seconds = run.timeline_bytes, run.timeline_seconds
    report.unedited_timeline_bytes = tuple(int(b) for b in liveness.live_bytes(graph))
