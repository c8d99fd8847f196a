"""Slabs and a plan for a traced step: as a whole where the limit allows it, else as coarsely sliced as it allows.

What stays whole may be compiled in parts (`compiling`). If that has no plan, the whole step is planned as traced. Slabs are not
compiled, since programs have no rules.

Numbers that the settings give are used as they are. Otherwise the rungs of `slabs.choice` are tried one after the other, until one
has a plan. A step with a tensor that kernels cannot index (`slabs.elements`) has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from lms3d.engine import plan_cache, planning
from lms3d.engine.cost import step_seconds
from lms3d.engine.effort import Run
from lms3d.engine.plan import Plan
from lms3d.engine.planners import PLANNERS
from lms3d.engine.prediction import Prediction, does_not_fit
from lms3d.engine.request import StepRequest
from lms3d.engine.slabs import choice, elements
from lms3d.engine.slabs.choice import Slabs
from lms3d.engine.step_model.study import Study
from lms3d.engine.tensorflow import slicing
from lms3d.engine.tensorflow.compiling import Compilation
from lms3d.engine.tensorflow.slicing import Function, Slicing
from lms3d.errors import DoesNotFit

Ask = Callable[[], StepRequest]
"""The request for a function as it is now."""

Compile = Callable[[], Compilation]
"""Compiles parts of the function, as far as the settings allow."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A step with the slabs that were chosen for it, or its programs, what was asked about it, and the answer."""

    request: StepRequest
    plan: Plan
    prediction: Prediction
    slabs: Slabs = ()
    compilation: Compilation = field(default_factory=Compilation)

    @property
    def as_traced(self) -> bool:
        """False if it is another step without a plan, too: sliced, or with programs."""
        return not self.slabs and not self.compilation.changed


def choose(
    function: Function,
    ask: Ask,
    *,
    compile_whole: Compile = Compilation,
    run: Run | None = None,
    effort_seconds: float | None = None,
    with_floor: bool = False,
) -> Chosen:
    """The graph of `function` is sliced if slabs are chosen. Raises DoesNotFit, with the smallest limit that was found.

    run: grants the planner's effort; None: `effort_seconds`.
    """
    whole = replace(ask(), effort_seconds=effort_seconds, with_floor=with_floor)
    if run is not None:
        seconds = step_seconds(whole.graph, whole.machine)
        whole = replace(whole, effort_seconds=run.granted(seconds), run_seconds=run.seconds(seconds))
    refused: DoesNotFit | None = None
    finest: Slabs = ()
    for slabs in _rungs(function, whole):
        finest = slabs or finest
        found = _with_slabs(function, ask, whole, slabs) if slabs else _whole(function, ask, whole, compile_whole)
        if isinstance(found, Chosen):
            return _with_lower_floor(function, ask, whole, found) if with_floor else found
        refused = found if refused is None else min(refused, found, key=_smallest)
    assert refused is not None, "there is at least one rung"
    raise _refused(refused, whole, finest)


def _rungs(function: Function, whole: StepRequest) -> Iterator[Slabs]:
    """The slabs to try, one after the other."""
    wanted = whole.settings.slabs
    if not isinstance(wanted, str):
        yield wanted
    elif not _may_slice(whole) or (planning.is_noop(whole) and _unindexable(function, whole, ()) is None):
        yield ()
    else:
        nodes, resident, most = slicing.nodes_of(function), whole.graph.resident_bytes, whole.settings.most_elements
        yield from choice.rungs(nodes, whole.limit_bytes, resident, mapped=whole.machine.mapped, most_elements=most)


def _may_slice(whole: StepRequest) -> bool:
    """Whether the step may be sliced without being asked for."""
    return whole.settings.slabs == choice.AUTO and PLANNERS[whole.settings.planner].slices


def _with_slabs(function: Function, ask: Ask, whole: StepRequest, slabs: Slabs) -> Chosen | DoesNotFit:
    """The plan with these slabs; where there is none, why, and the function is whole again."""
    sliced = slicing.slice_function(function, dict(slabs))
    found = _planned(function, ask, whole, slabs, changed=sliced.changed)
    if isinstance(found, DoesNotFit):
        sliced.undo()
        return found
    prediction = _sliced(found.prediction, whole, slabs, sliced) if sliced.changed else found.prediction
    return replace(found, prediction=prediction)


def _whole(function: Function, ask: Ask, whole: StepRequest, compile_whole: Compile) -> Chosen | DoesNotFit:
    """The plan for the step with its programs, or else for the step as traced; if there is none, why, and it is as traced."""
    compilation = compile_whole()
    found = _planned(function, ask, whole, (), changed=compilation.changed)
    if not compilation.changed:
        return found
    if isinstance(found, Chosen):
        return replace(found, prediction=_compiled(found, whole, compilation), compilation=compilation)
    compilation.undo()
    as_traced = _planned(function, ask, whole, (), changed=True)
    return as_traced if isinstance(as_traced, Chosen) else min(as_traced, found, key=_smallest)


def _planned(function: Function, ask: Ask, whole: StepRequest, slabs: Slabs, *, changed: bool) -> Chosen | DoesNotFit:
    """The plan for a function as it is now. changed: it is not that of the request any more."""
    request = whole.about(ask()) if changed else whole
    try:
        if (error := _unindexable(function, request, slabs)) is not None:
            raise error
        plan, prediction = plan_cache.make_plan(request)
        too_large = prediction.unedited_limit_bytes > whole.limit_bytes
        if plan.empty and slabs and changed and too_large:  # nothing is left that could move
            raise does_not_fit(whole.limit_bytes, prediction.unedited_limit_bytes)
    except DoesNotFit as error:
        return error
    return Chosen(request=request, plan=plan, prediction=prediction, slabs=slabs)


def _unindexable(function: Function, request: StepRequest, slabs: Slabs) -> DoesNotFit | None:
    """The error if a tensor has more elements than the device's kernels can index; slabs: those of `function` as it is now."""
    most = request.settings.most_elements
    if most is None or all((t.bytes or 0) <= most for t in request.graph.tensors.values()):
        return None
    here = {op.name for op in request.graph.ops if op.on_device}
    largest = elements.largest(node for node in slicing.nodes_of(function) if node.name in here)
    if largest is None or largest.elements <= most:
        return None
    return DoesNotFit(
        f"tensor {largest.name} {largest.shape} has {largest.elements:,} elements, and kernels of this device index at most "
        f"{most:,}; train with LMS and slabs auto or more slabs, or lower the resolution or the batch size"
        f"{choice.told(request.settings.slabs, slabs)}"
    )


def _with_lower_floor(function: Function, ask: Ask, whole: StepRequest, chosen: Chosen) -> Chosen:
    """The smallest limit of a whole step is that of its finest slabs, if it may be sliced, or that of the step as traced."""
    if chosen.slabs:
        return chosen
    known = [chosen.prediction.floor_bytes or sys.maxsize]
    chosen.compilation.undo()
    if chosen.compilation.changed:
        known.append(planning.floor_bytes(ask()))
    if _may_slice(whole):
        known.append(_finest_floor(function, ask))
    chosen.compilation.redo()
    return replace(chosen, prediction=replace(chosen.prediction, floor_bytes=min(known)))


def _finest_floor(function: Function, ask: Ask) -> int:
    """Of a function that is whole and as traced, which it is again."""
    finest = choice.finest(slicing.nodes_of(function))
    if not finest:
        return sys.maxsize
    sliced = slicing.slice_function(function, dict(finest))
    floor = planning.floor_bytes(ask()) if sliced.changed else sys.maxsize
    sliced.undo()
    return floor


def _smallest(error: DoesNotFit) -> int:
    return error.smallest_limit_bytes or sys.maxsize


def _refused(error: DoesNotFit, whole: StepRequest, tried: Slabs) -> DoesNotFit:
    """What says how far slabs were tried. error: of the rung with the smallest limit."""
    smallest, note = error.smallest_limit_bytes, choice.told(whole.settings.slabs, tried)
    if smallest is None or not note:
        return error
    if not tried:
        return DoesNotFit(f"{error}{note}", smallest)
    return does_not_fit(whole.limit_bytes, smallest, Study(whole).unedited_limit_bytes, note=note)


def _sliced(prediction: Prediction, whole: StepRequest, slabs: Slabs, sliced: Slicing) -> Prediction:
    """With what slicing did."""
    there = tuple((level, number) for level, number in slabs if level < len(sliced.levels))
    before = _before(prediction, whole)
    return replace(
        before,
        slabs=there,
        slab_shapes=tuple(sliced.levels[level] for level, _ in there),
        slab_seconds=max(0.0, prediction.unedited_step_seconds - before.unedited_step_seconds),
        sliced_tensors=len(sliced.program.sliced),
        joined=tuple(sliced.program.joined),
    )


def _compiled(found: Chosen, whole: StepRequest, compilation: Compilation) -> Prediction:
    """With what compiling did, by the speeds that the step with its programs was planned with."""
    before = _before(found.prediction, replace(whole, machine=found.request.machine))
    return replace(
        before,
        compiled=tuple(compilation.compiled),
        compiled_bytes=compilation.saved_bytes,
        program_seconds=before.unedited_step_seconds - found.prediction.unedited_step_seconds,
    )


def _before(prediction: Prediction, whole: StepRequest) -> Prediction:
    """What is said of the step without LMS is said of the whole step as traced."""
    study = Study(whole)
    figures = study.unedited_figures
    return replace(
        prediction,
        unedited_peak_bytes=figures.peak_bytes,
        unedited_limit_bytes=study.unedited_limit_bytes,
        unedited_step_seconds=figures.step_seconds,
        unedited_timeline_bytes=figures.timeline_bytes,
    )
