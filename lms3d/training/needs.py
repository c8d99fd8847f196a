"""From the options of a run to its LMS, to a prediction of what it will need, and to its length."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.config import TrainConfig
from lms3d.console import say
from lms3d.engine import tuning
from lms3d.engine.slabs import choice
from lms3d.errors import DoesNotFit
from lms3d.training import demo
from lms3d.training.task import Task
from lms3d.units import format_seconds, format_size

if TYPE_CHECKING:
    import keras

    from lms3d.engine.prediction import Prediction
    from lms3d.keras_step.callback import LMS
    from lms3d.keras_step.estimate import Planned
    from lms3d.keras_step.report import Report

DEFAULT_EPOCHS = 500
_TFLMS = ("swapout_threshold", "swapin_ahead", "swapin_groupby", "sync_mode", "serialization", "serialization_by_size")


def lms_for(options: TrainConfig, stats_file: Path | None) -> LMS:
    """The callback that plans and runs the steps of a training with these options. stats_file: see `LMS`."""
    from lms3d.keras_step.callback import LMS

    return LMS(enabled=options.lms, stats_file=stats_file, **lms_arguments(options))


def lms_arguments(options: TrainConfig) -> dict[str, Any]:
    """What `LMS` and `plan_step` are given alike; None for what the planner should choose."""
    unset = {"serialization": (), "serialization_by_size": 0.0}
    manual = {name: getattr(options, name) for name in _TFLMS}
    manual = {name: None if value == unset.get(name) else value for name, value in manual.items()}
    place = {"tier": options.swap_tier, "swap_dir": options.swap_dir}
    whole = {"memory_limit": options.memory_limit, "slabs": options.slabs, "compile": options.lms_compile}
    return {**whole, **place, **manual}


def plan_training_step(
    options: TrainConfig,
    task: Task,
    model: keras.Model,
    *,
    with_floor: bool = False,
    effort_seconds: float | None = None,
    **further: Any,
) -> Planned:
    """What LMS would do to the training step with these options; nothing is run. further: see `estimate.plan_step`."""
    import tensorflow as tf

    from lms3d.keras_step import estimate

    batch = options.batch_size
    spec = (
        tf.TensorSpec((batch, *model.input_shape[1:]), tf.float32),
        tf.TensorSpec((batch, *task.target_shape(options, model)), task.target_dtype),
    )
    asked = lms_arguments(options)
    return estimate.plan_step(model, spec, with_floor=with_floor, effort_seconds=effort_seconds, **asked, **further)


def estimate_step(options: TrainConfig, task: Task, model: keras.Model, *, with_floor: bool = False) -> Report:
    """What the training step needs with these options, and without LMS; nothing is run."""
    return plan_training_step(options, task, model, with_floor=with_floor).report


def require_fit(options: TrainConfig, report: Prediction) -> None:
    """DoesNotFit, with the smallest limits, if the step will not fit in the limit of its report."""
    limit_bytes, without, floor = report.limit_bytes, report.unedited_limit_bytes, report.smallest_limit_bytes
    if options.lms and floor > limit_bytes:
        raise report.refusal(choice.parse(options.slabs))
    if options.lms and report.predicted_peak_bytes > limit_bytes:  # happens only if all TFLMS parameters are given
        raise DoesNotFit(
            f"the step does not fit in {format_size(limit_bytes)} with the TFLMS parameters that were given, whose plan "
            f"peaks at {format_size(report.predicted_peak_bytes)}; leave one or all of them out to have them tuned, or raise "
            "--memory-limit"
        )
    if not options.lms and without > limit_bytes:
        raise DoesNotFit(
            f"the step does not fit in {format_size(limit_bytes)} without LMS: the smallest memory limit that would do is "
            f"{format_size(floor)} with LMS and {format_size(without)} without; use --lms or raise --memory-limit",
            without,
        )


def step_seconds(options: TrainConfig, report: Prediction) -> float:
    """The predicted seconds of a step of this run."""
    return report.predicted_step_seconds if options.lms else report.unedited_step_seconds


def with_demonstration_limit(options: TrainConfig, task: Task) -> TrainConfig:
    """The options with a memory limit, if the user gave none and no data: then LMS has something to do on any machine."""
    if options.data is not None or not options.lms or options.memory_limit is not None:
        return options
    limit_bytes = task.demonstration_limit_bytes(options)
    if limit_bytes is None:
        return options
    say(f"No --memory-limit: this demonstration takes {format_size(limit_bytes)}")
    return dataclasses.replace(options, memory_limit=limit_bytes)


def with_length(
    options: TrainConfig, task: Task, model: keras.Model, training_steps: int, validation_steps: int,
    time_share: float = 1.0, validation_cost: float = 1.0,
) -> TrainConfig:  # fmt: skip
    """Fills in epochs and steps, and prints how long a run on the embedded data will take.

    training_steps, validation_steps: the steps of one pass over all cases. time_share: the share of the time left that this run
    takes, if it is a demonstration. That ends by the clock (`TimeGuard`): the pace of a machine may change. validation_cost: see
    `Task.validation_cost`.
    """
    training = options.steps_per_epoch or training_steps
    validation = min(options.validation_steps or validation_steps, validation_steps)
    epochs = options.epochs or DEFAULT_EPOCHS
    if options.data is None:
        planned = plan_training_step(options, task, model, effort_seconds=tuning.LEAST_SECONDS)
        step = step_seconds(options, planned.prediction)
        if options.epochs is None:
            left = demo.seconds_left(elapsed_seconds(), time_share)
            if options.validation_steps is None:
                validation = demo.validation_steps(step * validation_cost, validation, left)
            steps = demo.steps(step, training, validation * validation_cost, left)
            fitting = math.ceil(steps / training)
            epochs = fitting if options.schedule == "cosine" else demo.MOST_EPOCHS  # cosine falls over all epochs
        else:
            steps = epochs * training
        seconds = step * (steps + demo.VALIDATION_STEP * validation * validation_cost * steps / training)
        say(
            f"Training takes about {format_seconds(seconds)}: {steps} steps in epochs of {training} ({format_seconds(step)} a step)"
        )
    return dataclasses.replace(options, epochs=epochs, steps_per_epoch=training, validation_steps=validation)


def elapsed_seconds() -> float:
    """The seconds since this process started."""
    import psutil

    return time.time() - psutil.Process().create_time()
