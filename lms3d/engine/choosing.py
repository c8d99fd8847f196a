"""Slabs and a plan for a traced step: as a whole if the limit allows it, else as coarsely sliced as it allows. No TensorFlow here.

A step that stays whole may have programs (`passes.compiling`). If that form has no plan, the step is planned as traced. A step in
slabs has no programs, since no rule slices them.

Numbers of slabs that the settings give are used as they are. Otherwise the rungs of `slabs.choice` are tried one after the other,
until one has a plan. A step with a tensor that kernels cannot index (`slabs.elements`) has none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lms3d.engine import plan_cache, planning
from lms3d.engine.cost import step_seconds
from lms3d.engine.effort import RunLength
from lms3d.engine.plan import Plan
from lms3d.engine.planners import PLANNERS
from lms3d.engine.prediction import Prediction, does_not_fit
from lms3d.engine.request import StepRequest
from lms3d.engine.slabs import choice, elements
from lms3d.engine.slabs.choice import Slabs
from lms3d.engine.step_model.study import Study
from lms3d.errors import DoesNotFit

if TYPE_CHECKING:
    from lms3d.engine.passes.forms import Form, Forms


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A plan, the form of the step that it was made for, and the question that it answers."""

    form: Form
    request: StepRequest
    plan: Plan
    prediction: Prediction

    @property
    def slabs(self) -> Slabs:
        return self.form.slabs

    @property
    def as_traced(self) -> bool:
        """False if the step is another one without a plan, too: in slabs, or with programs."""
        return not self.form.slabs and not self.form.compiled


def choose_form(
    forms: Forms, *, run: RunLength | None = None, effort_seconds: float | None = None, with_floor: bool = False
) -> Chosen:
    """The first form of the step that has a plan. Raises DoesNotFit, with the smallest limit that was found.

    run: grants the planner's effort; None: `effort_seconds`.
    """
    traced = forms.as_traced()
    whole = replace(traced.request, effort_seconds=effort_seconds, with_floor=with_floor)
    if run is not None:
        seconds = step_seconds(whole.graph, whole.machine)
        whole = replace(whole, effort_seconds=run.granted(seconds), run_seconds=run.seconds(seconds))
    traced = replace(traced, request=whole)
    refused: DoesNotFit | None = None
    finest: Slabs = ()
    for slabs in _rungs(forms, traced):
        finest = slabs or finest
        found = _sliced(forms, traced, slabs) if slabs else _whole(forms, traced)
        if isinstance(found, Chosen):
            return _with_lower_floor(forms, traced, found) if with_floor else found
        refused = found if refused is None else min(refused, found, key=_smallest)
    assert refused is not None, "there is at least one rung"
    raise _refused(refused, whole, finest)


def _rungs(forms: Forms, traced: Form) -> Iterator[Slabs]:
    """The slabs to try, one after the other; () is the whole step."""
    whole = traced.request
    wanted = whole.settings.slabs
    if not isinstance(wanted, str):
        yield wanted
    elif not _may_slice(whole) or (planning.is_noop(whole) and _unindexable(forms, traced) is None):
        yield ()
    else:
        nodes, resident, most = forms.nodes(traced), whole.graph.resident_bytes, whole.settings.most_elements
        yield from choice.rungs(nodes, whole.limit_bytes, resident, mapped=whole.machine.mapped, most_elements=most)


def _may_slice(whole: StepRequest) -> bool:
    """Whether the step may be sliced without being asked for."""
    return whole.settings.slabs == choice.AUTO and PLANNERS[whole.settings.planner].slices


def _sliced(forms: Forms, traced: Form, slabs: Slabs) -> Chosen | DoesNotFit:
    """The plan for the step in these slabs, or the reason why there is none."""
    form = forms.in_slabs(slabs, traced)
    found = _planned(forms, traced, form)
    if isinstance(found, DoesNotFit) or not form.changed:
        return found
    return replace(found, prediction=_with_slabs(found.prediction, traced.request, form))


def _whole(forms: Forms, traced: Form) -> Chosen | DoesNotFit:
    """The plan for the step with its programs, or else for the step as traced, or the reason why there is none."""
    form = forms.with_programs(traced)
    found = _planned(forms, traced, form)
    if not form.changed:
        return found
    if isinstance(found, Chosen):
        return replace(found, prediction=_with_programs(found, traced.request))
    as_traced = _planned(forms, traced, replace(forms.as_traced(), changed=True))
    return as_traced if isinstance(as_traced, Chosen) else min(as_traced, found, key=_smallest)


def _planned(forms: Forms, traced: Form, form: Form) -> Chosen | DoesNotFit:
    """The plan for the step in this form, or the reason why there is none."""
    whole = traced.request
    request = whole.about(form.request) if form.changed else whole
    form = replace(form, request=request)
    try:
        if (error := _unindexable(forms, form)) is not None:
            raise error
        plan, prediction = plan_cache.cached_plan(request)
        too_large = prediction.unedited_limit_bytes > whole.limit_bytes
        if plan.empty and form.slabs and form.changed and too_large:  # no tensor is left that could move
            raise does_not_fit(whole.limit_bytes, prediction.unedited_limit_bytes)
    except DoesNotFit as error:
        return error
    return Chosen(form=form, request=request, plan=plan, prediction=prediction)


def _unindexable(forms: Forms, form: Form) -> DoesNotFit | None:
    """The error if a tensor of the step in this form has more elements than the device's kernels can index."""
    request = form.request
    most = request.settings.most_elements
    if most is None or all((t.bytes or 0) <= most for t in request.graph.tensors.values()):
        return None
    here = {op.name for op in request.graph.ops if op.on_device}
    largest = elements.largest(node for node in forms.nodes(form) if node.name in here)
    if largest is None or largest.elements <= most:
        return None
    return DoesNotFit(
        f"tensor {largest.name} {largest.shape} has {largest.elements:,} elements, and kernels of this device index at most "
        f"{most:,}; train with LMS and slabs auto or more slabs, or lower the resolution or the batch size"
        f"{choice.note(request.settings.slabs, form.slabs)}"
    )


def _with_lower_floor(forms: Forms, traced: Form, chosen: Chosen) -> Chosen:
    """The smallest limit of a whole step is that of its finest slabs, if it may be sliced, or that of the step as traced."""
    if chosen.slabs:
        return chosen
    known = [chosen.prediction.floor_bytes or sys.maxsize]
    if chosen.form.compiled:
        known.append(planning.floor_bytes(forms.as_traced().request))
    if _may_slice(traced.request):
        known.append(_finest_floor(forms, traced))
    return replace(chosen, prediction=replace(chosen.prediction, floor_bytes=min(known)))


def _finest_floor(forms: Forms, traced: Form) -> int:
    """The smallest limit of the step in its finest slabs."""
    finest = choice.finest(forms.nodes(traced))
    if not finest:
        return sys.maxsize
    form = forms.in_slabs(finest, traced)
    return planning.floor_bytes(form.request) if form.changed else sys.maxsize


def _smallest(error: DoesNotFit) -> int:
    return error.smallest_limit_bytes or sys.maxsize


def _refused(error: DoesNotFit, whole: StepRequest, tried: Slabs) -> DoesNotFit:
    """The error, with a note on the slabs that were tried. error: that of the rung with the smallest limit."""
    smallest, note = error.smallest_limit_bytes, choice.note(whole.settings.slabs, tried)
    if smallest is None or not note:
        return error
    if not tried:
        return DoesNotFit(f"{error}{note}", smallest)
    return does_not_fit(whole.limit_bytes, smallest, Study(whole).unedited_limit_bytes, note=note)


def _with_slabs(prediction: Prediction, whole: StepRequest, form: Form) -> Prediction:
    """The prediction for a sliced step, with what slicing did."""
    there = tuple((level, number) for level, number in form.slabs if level < len(form.levels))
    before = _before(prediction, whole)
    return replace(
        before,
        slabs=there,
        slab_shapes=tuple(form.levels[level] for level, _ in there),
        slab_seconds=max(0.0, prediction.unedited_step_seconds - before.unedited_step_seconds),
        sliced_tensors=form.sliced_tensors,
        joined=form.joined,
    )


def _with_programs(chosen: Chosen, whole: StepRequest) -> Prediction:
    """The prediction for a step with programs, with what compiling did, by the speeds that the step was planned with."""
    before = _before(chosen.prediction, replace(whole, machine=chosen.request.machine))
    return replace(
        before,
        compiled=chosen.form.compiled,
        compiled_bytes=chosen.form.saved_bytes,
        program_seconds=before.unedited_step_seconds - chosen.prediction.unedited_step_seconds,
    )


def _before(prediction: Prediction, whole: StepRequest) -> Prediction:
    """The prediction, whose figures without LMS are taken from the whole step as traced."""
    study = Study(whole)
    figures = study.unedited_figures
    return replace(
        prediction,
        unedited_peak_bytes=figures.peak_bytes,
        unedited_limit_bytes=study.unedited_limit_bytes,
        unedited_step_seconds=figures.step_seconds,
        unedited_timeline_bytes=figures.timeline_bytes,
    )
