"""One step under many limits: what each costs in time, by this planner and by what others do. No TensorFlow here.

The limits lie evenly between the floor and the smallest limit that needs no LMS ("fit"). At each of them stand the plan of
this planner and TFLMS's, auto-tuned where its parameters are not given. Two methods know no limit: swap everything that can
be swapped, recompute everything that can be recomputed (the rest is kept). They stand where they would just fit.
So that the axes mean the same for all:
 1. Every plan is put into the step (`edit.apply`) and run by the same simulator (`simulate`), which says peak and seconds.
 2. Every plan may use the same share of a limit (`search.usable_bytes`); the rest is for what no plan foresees. That the
    tensors fit as pieces in a pool, too, is asked of all but TFLMS, which has no fixed order in which to replay them.
 3. Nothing is planned with a limit that is not a whole MiB, and nothing is run: these are predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lms3d.errors import DoesNotFit
from lms3d.swap import edit, plan_cache
from lms3d.swap.cost import Machine
from lms3d.swap.ir import StepGraph
from lms3d.swap.plan import Plan
from lms3d.swap.planners import tflms
from lms3d.swap.planners.hybrid import emit, search
from lms3d.swap.planners.hybrid.problem import Buffer, Problem, reduce
from lms3d.swap.planners.hybrid.schedule import Choice, Mode, build
from lms3d.swap.planning import Settings
from lms3d.swap.simulate import simulate

LMS = "lms3d"
TFLMS, TFLMS_PART, TFLMS_GIVEN = "TFLMS auto-tune", "TFLMS, some parameters given", "TFLMS, parameters given"
SWAP_ALL, RECOMPUTE_ALL = "swap everything", "recompute everything"
WITHOUT = "without LMS"
_MIB = 1 << 20

Progress = Callable[[int, int, str], None]
"""progress(done, total, what)."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A method under a limit. None in all figures where no plan of the method fits; seconds are those of one step."""

    method: str
    limit_bytes: int
    peak_bytes: int | None = None
    step_seconds: float | None = None
    waiting_seconds: float | None = None
    swapped_out_bytes: int | None = None
    recomputed_ops: int | None = None

    @property
    def fits(self) -> bool:
        return self.step_seconds is not None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The points of all methods, the two limits between which they lie, and the seconds of a step without LMS.

    tflms: what TFLMS's method is called here: TFLMS, TFLMS_PART or TFLMS_GIVEN.
    """

    points: tuple[Point, ...]
    floor_bytes: int
    fit_bytes: int
    unedited_seconds: float
    tflms: str = TFLMS

    def of(self, method: str) -> list[Point]:
        """The points of one method, by limit."""
        return sorted((p for p in self.points if p.method == method), key=lambda p: p.limit_bytes)


def run(
    graph: StepGraph,
    settings: Settings,
    machine: Machine,
    *,
    limits: int,
    ends: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Plan `graph` at `limits` (2 or more) limits. The limit and the planner in `settings` do not matter.

    ends: the floor and the fit in bytes, where a report (`floor_bytes`, `unedited_limit_bytes`) has named them already.

    Takes some seconds per limit; plans come from the cache where they were made before (`store`).
    """
    floor_bytes, fit_bytes = ends or _ends(graph, settings, machine)
    chosen = between(floor_bytes, fit_bytes, limits)
    unedited = _point(WITHOUT, fit_bytes, Plan(), graph, machine)
    problem = reduce(graph, machine)
    theirs, points = _name(settings.tflms), []
    for done, limit in enumerate(chosen):
        if progress:
            progress(done, len(chosen), "planning")
        hybrid = replace(settings, planner="hybrid", limit_bytes=limit)
        points.append(_point(LMS, limit, _planned(graph, hybrid, machine), graph, machine))
        budget = search.usable_bytes(problem, limit, settings.pool)
        levels = replace(settings, planner="tflms", limit_bytes=int(budget / tflms.SAFETY) + 1)
        points.append(_within(budget, _point(theirs, limit, _planned(graph, levels, machine), graph, machine)))
    points += [
        _everything(SWAP_ALL, problem, Mode.SWAP, lambda buffer: buffer.swappable, settings.pool, machine),
        _everything(RECOMPUTE_ALL, problem, Mode.RECOMPUTE, lambda buffer: buffer.recomputable, settings.pool, machine),
        unedited,
    ]
    if progress:
        progress(len(chosen), len(chosen), "planning")
    return Sweep(
        points=tuple(points),
        floor_bytes=floor_bytes,
        fit_bytes=fit_bytes,
        unedited_seconds=unedited.step_seconds or 0.0,
        tflms=theirs,
    )


def between(floor_bytes: int, fit_bytes: int, count: int) -> list[int]:
    """`count` limits from the floor to the fit, both included, in whole MiB; fewer where they would be the same. One: the floor."""
    steps = [floor_bytes + (fit_bytes - floor_bytes) * i / max(count - 1, 1) for i in range(count)]
    return sorted({-int(-step // _MIB) * _MIB for step in steps})


def _name(parameters: tflms.Parameters) -> str:
    """What a plan by TFLMS with these parameters is called."""
    if parameters == tflms.Parameters():
        return TFLMS
    tuned = (parameters.swapout_threshold, parameters.swapin_ahead, parameters.swapin_groupby, parameters.sync_mode)
    return TFLMS_PART if None in tuned else TFLMS_GIVEN


def _ends(graph: StepGraph, settings: Settings, machine: Machine) -> tuple[int, int]:
    """The floor and the smallest limit without LMS."""
    _, report = plan_cache.decide(graph, replace(settings, planner="off"), machine, with_floor=True)
    return report.floor_bytes or report.unedited_limit_bytes, report.unedited_limit_bytes


def _planned(graph: StepGraph, settings: Settings, machine: Machine) -> Plan | None:
    try:
        return plan_cache.decide(graph, settings, machine, with_floor=False)[0]
    except DoesNotFit:
        return None


def _within(budget_bytes: int, point: Point) -> Point:
    """The point, without its figures where its peak is too high: parameters that are all given are not tuned to a limit."""
    fits = point.peak_bytes is not None and point.peak_bytes <= budget_bytes
    return point if fits else Point(method=point.method, limit_bytes=point.limit_bytes)


def _everything(
    method: str, problem: Problem, mode: Mode, movable: Callable[[Buffer], bool], pool: str, machine: Machine
) -> Point:
    """Every buffer that can be moved is, whatever it costs; at the smallest limit that this fits in."""
    choices = {i: Choice(mode) for i, buffer in enumerate(problem.buffers) if movable(buffer)}
    schedule = build(problem, choices, machine)
    limit = search.needed_bytes(problem, schedule, pool)
    solution = search.Solution(problem, choices, schedule, limit, schedule.peak_bytes, True)
    return _point(method, limit, emit.emit(solution), problem.graph, machine)


def _point(method: str, limit_bytes: int, plan: Plan | None, graph: StepGraph, machine: Machine) -> Point:
    if plan is None:
        return Point(method=method, limit_bytes=limit_bytes)
    step = simulate(edit.apply(graph, plan), machine)
    return Point(
        method=method,
        limit_bytes=limit_bytes,
        peak_bytes=step.peak_bytes,
        step_seconds=step.seconds,
        waiting_seconds=sum(end - start for start, end in step.waiting),
        swapped_out_bytes=plan.swapped_out_bytes,
        recomputed_ops=len(plan.recomputes),
    )
