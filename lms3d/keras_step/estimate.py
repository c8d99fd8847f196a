"""Will it fit, and at what cost? The plan of a model's step, without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Any, ParamSpec

import keras
import numpy as np
import tensorflow as tf

from lms3d.device import memory, workspace
from lms3d.engine.choosing import Chosen
from lms3d.engine.cost import Machine
from lms3d.engine.engine import Engine
from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan
from lms3d.engine.prediction import Prediction
from lms3d.engine.request import Settings, StepRequest
from lms3d.engine.slabs import choice
from lms3d.engine.step_model.pool import CPU_POOL, LIMITED_GPU_POOL, Pool
from lms3d.errors import DoesNotFit, InputError
from lms3d.keras_step import on_device, report, settings
from lms3d.keras_step.attachment import require_graph_step, trace_step
from lms3d.keras_step.patience import say_if_long
from lms3d.keras_step.report import Report

STEPS = ("train", "test", "predict")
P = ParamSpec("P")
_ELSEWHERE = "GPU:0"  # the compute device of a machine that is not here


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A question about a step, and its answer. It holds nothing of TensorFlow.

    prediction: for the limit that the plan was made for. That is the floor if the limit asked for is below it.
    """

    request: StepRequest
    plan: Plan
    prediction: Prediction

    @property
    def graph(self) -> StepGraph:
        return self.request.graph

    @property
    def settings(self) -> Settings:
        return self.request.settings

    @property
    def machine(self) -> Machine:
        return self.request.machine

    @cached_property
    def report(self) -> Report:
        """The prediction, with the limit that was asked for in place of the plan's."""
        asked = replace(self.prediction, limit_bytes=self.request.limit_bytes)
        return report.describe(asked, limit_kind=_kind_of_limit(self.settings.pool))


def _kind_of_limit(pool: Pool) -> str:
    """The smallest limits depend on it: a CPU's pool that nothing may leave needs some MiB more, a GPU's wastes less."""
    if pool in (CPU_POOL, LIMITED_GPU_POOL):
        return "a hard one, as lms3d.limit_memory sets it"
    return "" if pool.in_pieces else "not a hard one: TensorFlow may take more"


def plan_step(
    model: keras.Model,
    input_spec: Any,
    *,
    memory_limit: str | float | None = None,
    hard_limit: bool = True,
    step: str = "train",
    planner: str = "auto",
    slabs: Any = choice.AUTO,
    compile: str = settings.OFF,
    tier: str = "auto",
    swap_dir: str | Path | None = None,
    mapped: bool = True,
    with_floor: bool = True,
    effort_seconds: float | None = None,
    machine: Machine | None = None,
    at_floor: bool = True,
    **tflms_parameters: Any,
) -> Planned:
    """What LMS would do to a step of `model`, without running it: does it fit, and at what cost?

    model: any Keras model that LMS can train. It must be compiled, unless `step` is "predict". Its layers and optimiser slots are
        built if they are not yet.
    input_spec: what a step takes, with the batch as axis 0: (x, y) or (x, y, sample_weight), to predict (x,), of nested
        tf.TensorSpecs such as `tf.TensorSpec((8, 224, 224, 3))`, all sizes known. A batch of arrays or tensors does as well, or
        a tf.data.Dataset of batches, whose first batch is looked at if it leaves sizes open.
    memory_limit: "6GiB" or bytes; None means the limit that was set, or else all that the device has. It need not exist here.
    hard_limit: whether a `memory_limit` given here counts as a hard one, as `limit_memory` sets it. A CPU's pool needs some MiB
        more; a GPU's allocator wastes less. False plans as `LMS(memory_limit=...)` does if no hard limit is set.
    step: "train", "test" or "predict".
    planner, slabs, compile, tier, swap_dir, mapped and the parameters of TFLMS: see `LMS`.
    with_floor: also find the smallest limit that some plan fits in, which takes seconds for large models.
    effort_seconds: what the search may cost, by the price list of `engine.effort`; None means as much as it can use. A run is
        granted what its length is worth, and may make another plan.
    machine: the speeds of a GPU to plan for, in place of this machine; `memory_limit` must say how much memory it has. Nothing is
        measured then, so nothing is compiled.
    at_floor: plan for the floor if `memory_limit` is below it. False raises DoesNotFit instead, in half the time.

    The report has `unedited_limit_bytes` and `floor_bytes`, the smallest limits without and with LMS; `predicted_peak_bytes` and
    `predicted_step_seconds` under the plan; `unedited_peak_bytes` and `unedited_step_seconds` without. A limit below the floor is
    no error, unless `at_floor` is False: the plan is then the one with the smallest peak, and `floor_bytes` is above `limit_bytes`.

    Under a CPU's hard limit, batches are taken to come from the pipelines of `data`: they lie outside the limited pool, and count
    nowhere. Training looks where they lie.

    Raises InputError if LMS cannot plan the step (a model that is not compiled, that runs eagerly or under a distribution strategy,
    unknown sizes or names), and DoesNotFit if the given parameters of TFLMS leave no choice and do not fit.
    """
    _require_step(model, step)
    input_spec = batch_spec(input_spec)
    parameters = settings.tflms_parameters(tflms_parameters, plan_step)
    _require_measurable(compile, machine)
    device = memory.compute_device() if machine is None else _ELSEWHERE
    asked = settings.resolve(
        memory_limit, tier, settings.planner_name(planner, parameters), parameters, slabs=choice.parse(slabs), compile=compile,
        hypothetical=True, hard=hard_limit, device=device,
    )  # fmt: skip
    if machine is None:
        workspace.put_in_force(asked.limit_bytes, memory.gpu_name())
    engine = Engine(asked, compute_device=device, swap_dir=swap_dir, mapped=mapped, machine=machine)
    function = _traced(model, step, input_spec)
    beside = on_device.supposed(function, input_spec, asked.pool)
    with say_if_long(step, asked.limit_bytes, ", to predict what it needs"):
        function = engine.unfolded(function, step, beside)
        ask = partial(
            engine.choose, function, step, beside, with_floor=with_floor, effort_seconds=effort_seconds
        )  # fmt: skip
        chosen = _answered(ask, asked, at_floor=at_floor)
    request = chosen.request.under(limit_bytes=asked.limit_bytes)
    return Planned(request=request, plan=chosen.plan, prediction=chosen.prediction)


def _require_measurable(compile: str, machine: Machine | None) -> None:
    if machine is not None and settings.checked_compile(compile) != settings.OFF:
        raise InputError(
            f"compile {compile!r}: programs are measured here, and machine= is not here; leave one of the two out"
        )


def _answered(ask: Callable[..., Chosen], asked: Settings, *, at_floor: bool) -> Chosen:
    """The plan for the limit or, if none fits in it and `at_floor`, for the floor."""
    try:
        return ask()
    except DoesNotFit as error:
        if error.smallest_limit_bytes is None or not at_floor:
            raise
        return ask(settings=replace(asked, limit_bytes=error.smallest_limit_bytes))


def _traced(model: keras.Model, step: str, spec: Any) -> tf.types.experimental.ConcreteFunction:
    """The traced step for batches of `spec`. InputError if it needs targets and `spec` has none."""
    try:
        return trace_step(model, step, spec)
    except (ValueError, TypeError) as error:
        if step == "predict" or (isinstance(spec, tuple) and len(spec) > 1):
            raise
        raise InputError(
            f"input_spec: found a batch of x alone, which the {step} step does not take ({error}); expected (x, y) or (x, y, "
            "sample_weight); give the targets, too, or plan step='predict'"
        ) from error


def _require_step(model: keras.Model, step: str) -> None:
    if step not in STEPS:
        raise InputError(f"step {step!r}: expected one of {', '.join(STEPS)}")
    if step != "predict" and not model.compiled:
        raise InputError(
            f"a model that is not compiled has no {step} step to plan; call model.compile(optimizer, loss), or plan step='predict'"
        )
    require_graph_step(model, step)


def _report_of(plan: Callable[P, Planned]) -> Callable[P, Report]:
    """A function that returns the report of `plan`, with the same arguments in completion and help."""

    @wraps(plan)
    def report_of_plan(*arguments: P.args, **options: P.kwargs) -> Report:
        return plan(*arguments, **options).report

    report_of_plan.__name__ = report_of_plan.__qualname__ = "estimate"
    report_of_plan.__doc__ = (
        "The report of `plan_step`, which has the same arguments: what the step needs with and without LMS, in bytes and seconds. "
        "Its `fits` says whether the limit will do."
    )
    return report_of_plan


estimate = _report_of(plan_step)


def batch_spec(given: Any) -> Any:
    """The exact shapes and types of a batch, as nested specs. InputError if a size is open.

    given: nested specs, arrays or tensors, or a dataset of batches.
    """
    if any(isinstance(part, int) for part in tf.nest.flatten(given)):
        raise InputError(
            f"input_spec: found numbers ({str(given)[:80]}); expected what a batch holds: arrays, tensors, a dataset, or shapes as "
            "tf.TensorSpec((8, 224, 224, 3))"
        )
    if isinstance(given, tf.data.Dataset):
        given = given.element_spec if _is_exact(given.element_spec) else next(iter(given), ())
    spec = tf.nest.map_structure(_spec, given)
    if not tf.nest.flatten(spec):
        raise InputError("planning needs a batch; give the shapes of one, or a dataset that is not empty")
    if not _is_exact(spec):
        raise InputError(f"planning needs all sizes of a batch, its own size too; {spec} leaves some open")
    return spec


def _spec(part: Any) -> tf.TypeSpec:
    if isinstance(part, tf.TypeSpec):
        return part
    if isinstance(part, np.ndarray) and part.dtype.kind == "f":  # as `fit` does
        return tf.TensorSpec(part.shape, keras.config.floatx())
    return tf.type_spec_from_value(tf.convert_to_tensor(part) if isinstance(part, np.ndarray) else part)


def _is_exact(spec: Any) -> bool:
    """Whether all sizes are known. Ragged and sparse parts have no exact shape, and do not count."""
    return all(p.shape.is_fully_defined() for p in tf.nest.flatten(spec) if isinstance(p, tf.TensorSpec))
