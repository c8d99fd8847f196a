"""One step under many limits: what each costs in time, by this planner and by others. No TensorFlow here.

The limits lie evenly between the floor and the smallest limit without LMS ("fit"). At each of them: the plan of the hybrid
planner, and that of TFLMS, whose parameters are tuned unless they are given. Two planners have one plan for all limits, "swap
everything" and "recompute everything"; they stand at the smallest limit that they fit in. So that they can be compared:
- SWEEP-1: Every plan is applied to the step (`edit.apply`) and run by one simulator, which gives peak and seconds.
- SWEEP-2: Every plan may use the same share of a limit (`Pool.usable_bytes`). That the tensors also fit a pool as pieces
  is asked of all planners but TFLMS, whose search would have to begin anew for many limits.
- SWEEP-3: Limits are whole MiB, and nothing is run: these are predictions.
- SWEEP-4: Below the floor of the whole step, the step is sliced as its limit asks for, down to the floor of the finest slabs. Above
  that floor the step is whole, even if training would choose slabs because what a whole step swaps is copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lms3d.engine import edit, plan_cache, tuning
from lms3d.engine.plan import Plan
from lms3d.engine.planners.tflms.parameters import Parameters
from lms3d.engine.prediction import Prediction
from lms3d.engine.request import StepRequest
from lms3d.engine.slabs import choice
from lms3d.engine.step_model.pool import NO_POOL
from lms3d.engine.step_model.simulate import simulate
from lms3d.errors import DoesNotFit
from lms3d.units import format_size

LMS = "lms3d"
TFLMS, TFLMS_PART, TFLMS_GIVEN = "TFLMS auto-tune", "TFLMS, some parameters given", "TFLMS, parameters given"
SWAP_ALL, RECOMPUTE_ALL = "swap everything", "recompute everything"
EVERYTHING = {SWAP_ALL: "swap_everything", RECOMPUTE_ALL: "recompute_everything"}
WITHOUT = "without LMS"
SLICED_SHARE = 3  # of the limits, one in so many lies below the floor of the whole step
_MIB = 1 << 20

Sliced = Callable[[int], tuple[StepRequest, Plan, Prediction]]
"""limit in bytes -> the step as it is sliced for that limit, its plan, and its prediction. If no plan fits, the limit of the
prediction is a larger one."""

Progress = Callable[[int, int, str, str], None]
"""progress(done, total, what, note): the note is the limit that is planned for."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A method under a limit. If no plan of the method fits, all figures are None. Seconds are per step. slabs: such as
    "16/8"; "off": the step is whole."""

    method: str
    limit_bytes: int
    peak_bytes: int | None = None
    step_seconds: float | None = None
    waiting_seconds: float | None = None
    swapped_out_bytes: int | None = None
    recomputed_ops: int | None = None
    slabs: str = choice.OFF

    @property
    def fits(self) -> bool:
        return self.step_seconds is not None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The points of all methods, the two limits between which they lie, and the seconds of a step without LMS.

    tflms: the name of TFLMS's method: TFLMS, TFLMS_PART or TFLMS_GIVEN. slab_floor_bytes: the floor of the step in slabs; None if
    slabs were not asked for, or are of no use.
    """

    points: tuple[Point, ...]
    floor_bytes: int
    fit_bytes: int
    unedited_seconds: float
    tflms: str = TFLMS
    slab_floor_bytes: int | None = None

    def of(self, method: str) -> list[Point]:
        """The points of one method, by limit."""
        return sorted((p for p in self.points if p.method == method), key=lambda p: p.limit_bytes)


def run(
    request: StepRequest,
    *,
    limits: int,
    ends: tuple[int, int] | None = None,
    sliced: Sliced | None = None,
    slab_floor_bytes: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Plan the step of `request` at `limits` (2 or more) limits. Its own limit, planner and effort do not matter.

    ends: the floor and the fit in bytes, if a prediction (`floor_bytes`, `unedited_limit_bytes`) has named them already.
    sliced: plans the step in slabs, and slab_floor_bytes is the smallest limit for that (SWEEP-4); None leaves these limits out.
    Takes some seconds per limit; plans that were made before come from the cache.
    """
    request = replace(request, with_floor=False)
    floor_bytes, fit_bytes = ends or _ends(request)
    chosen = between(floor_bytes, fit_bytes, limits)
    theirs = _name(request.settings.parameters)
    unedited = _point(WITHOUT, fit_bytes, Plan(), request)
    below: list[int] = []
    if sliced is not None and slab_floor_bytes is not None:
        count = max(2, limits // SLICED_SHARE)
        below = between(min(slab_floor_bytes, floor_bytes), floor_bytes, count)[:-1]  # the floor itself is in `chosen`
    points: list[Point] = []
    tell, total = progress or _untold, len(below) + len(chosen)
    for done, limit_bytes in enumerate((*below, *chosen)):
        tell(done, total, "planning", format_size(limit_bytes))
        if sliced is not None and limit_bytes in below:
            points += [_in_slabs(sliced, limit_bytes), Point(method=theirs, limit_bytes=limit_bytes)]
        else:
            points += _under(request, limit_bytes, theirs)
    points += [*_everything(request), unedited]
    tell(total, total, "planning", "")
    return Sweep(
        points=tuple(points),
        floor_bytes=floor_bytes,
        fit_bytes=fit_bytes,
        unedited_seconds=unedited.step_seconds or 0.0,
        tflms=theirs,
        slab_floor_bytes=min((p.limit_bytes for p in points if p.limit_bytes < floor_bytes), default=None),
    )


def between(floor_bytes: int, fit_bytes: int, count: int) -> list[int]:
    """`count` limits from the floor to the fit, both included, in whole MiB; fewer if some would be the same. One: the floor."""
    steps = [floor_bytes + (fit_bytes - floor_bytes) * i / max(count - 1, 1) for i in range(count)]
    return sorted({-int(-step // _MIB) * _MIB for step in steps})


def _untold(done: int, total: int, what: str, note: str) -> None:
    return None


def _in_slabs(sliced: Sliced, limit_bytes: int) -> Point:
    """The hybrid planner under a limit below the floor of the whole step (SWEEP-4)."""
    request, plan, prediction = sliced(limit_bytes)
    point = _point(LMS, limit_bytes, plan if prediction.limit_bytes <= limit_bytes else None, request)
    return replace(point, slabs=choice.text(prediction.slabs))


def _name(parameters: Parameters | None) -> str:
    """The name of TFLMS's method with these parameters."""
    if parameters is None or parameters == Parameters():
        return TFLMS
    return TFLMS_GIVEN if parameters.fixed else TFLMS_PART


def _ends(request: StepRequest) -> tuple[int, int]:
    """The floor and the smallest limit without LMS."""
    _, prediction = plan_cache.cached_plan(replace(request.under(planner="off"), with_floor=True))
    return prediction.floor_bytes or prediction.unedited_limit_bytes, prediction.unedited_limit_bytes


def _under(request: StepRequest, limit_bytes: int, theirs: str) -> Iterator[Point]:
    """The hybrid planner and TFLMS under one limit, with the same share of it to use (SWEEP-2)."""
    yield _point(LMS, limit_bytes, _plan(request.under(planner="hybrid", limit_bytes=limit_bytes)), request)
    budget_bytes = request.settings.pool.usable_bytes(limit_bytes)
    levels = request.under(planner="tflms", limit_bytes=int(budget_bytes / tuning.TFLMS_SAFETY) + 1, pool=NO_POOL)
    yield _within(budget_bytes, _point(theirs, limit_bytes, _plan(levels), request))


def _everything(request: StepRequest) -> Iterator[Point]:
    """The planners that have one plan, at the smallest limit in which it fits."""
    for method, planner in EVERYTHING.items():
        try:
            plan_cache.cached_plan(request.under(planner=planner, limit_bytes=1))
        except DoesNotFit as error:
            limit_bytes = error.smallest_limit_bytes or 0
            yield _point(method, limit_bytes, _plan(request.under(planner=planner, limit_bytes=limit_bytes)), request)


def _plan(request: StepRequest) -> Plan | None:
    try:
        return plan_cache.cached_plan(request)[0]
    except DoesNotFit:
        return None


def _within(budget_bytes: int, point: Point) -> Point:
    """The point; without its figures if its peak is too high, since parameters that are all given are not tuned to a limit."""
    fits = point.peak_bytes is not None and point.peak_bytes <= budget_bytes
    return point if fits else Point(method=point.method, limit_bytes=point.limit_bytes)


def _point(method: str, limit_bytes: int, plan: Plan | None, request: StepRequest) -> Point:
    if plan is None:
        return Point(method=method, limit_bytes=limit_bytes)
    step = simulate(edit.apply(request.graph, plan), request.machine)
    return Point(
        method=method,
        limit_bytes=limit_bytes,
        peak_bytes=step.peak_bytes,
        step_seconds=step.seconds,
        waiting_seconds=sum(end - start for start, end in step.waiting),
        swapped_out_bytes=plan.swapped_out_bytes,
        recomputed_ops=len(plan.recomputes),
    )
