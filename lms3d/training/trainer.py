"""Training of any compiled model with Keras `fit`, on any number of ranks. This module knows no task.

A run that is interrupted and resumed, however often, ends with the same bits as an undisturbed run (on a CPU): the training data
is a function of the sample's number, and a snapshot holds all other state (`run_state`). On another number of ranks a resumed
run goes on at the same sample, and the learning rate is scaled by the number of ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from lms3d.training import resume
from lms3d.training.callbacks import order
from lms3d.training.callbacks.progress import TimeGuard
from lms3d.training.interrupt import Interrupt
from lms3d.training.run import Data, Job, TrainingRun, TrainingSchedule
from lms3d.training.run_state import Position, Row, floats
from lms3d.training.validation import OwnValidation


@dataclass(frozen=True, kw_only=True)
class History:
    """The result of a run."""

    rows: Sequence[Row]
    """One per epoch: epoch (from 1), loss, val_loss, learning_rate, seconds, metrics."""

    stopped_early: bool
    """Whether the validation loss stopped getting better."""

    out_of_time: bool
    """Whether it was a demonstration, and its time was over."""

    resumed_at: Position | None
    """The position at which an earlier run was continued; None for a new run."""


def train(
    model: keras.Model,
    data: Data,
    schedule: TrainingSchedule,
    job: Job,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> History:
    """Trains `model` (compiled, its optimiser built); writes history.csv, best.keras and last/ into the run folder.

    callbacks: in addition to every run's (`callbacks.order`). All ranks call this with the same arguments, except for
    their share of the data, and all return or raise at the same step.
    Raises Interrupted after Ctrl-C, once `last/` is saved, and Diverged if the loss is not finite.
    """
    schedule = replace(schedule, validation_steps=_batches(data.validation, schedule.validation_steps))
    if schedule.validation_steps is None and job.world.size > 1:
        raise ValueError("train: several ranks need validation_steps, or a validation dataset of known length")
    with Interrupt(job.on_interrupt) as interrupt:
        run = TrainingRun(model, data, schedule, job, interrupt)
        resumed_at = resume.start(model, run)
        run.callbacks = order.build(run, callbacks)
        with order.told_of_the_end(run.callbacks), _ended_on_error(run.callbacks):
            _fit_what_is_left(model, run)
    state = run.state
    return History(
        rows=state.rows, stopped_early=state.stopped_early, out_of_time=state.out_of_time, resumed_at=resumed_at
    )


def _fit_what_is_left(model: keras.Model, run: TrainingRun) -> None:
    """Finishes an epoch that an earlier run has begun, then trains whole epochs."""
    timed = any(isinstance(one, TimeGuard) for one in run.callbacks)  # else --epochs asks for more than a demonstration
    model.stop_training = run.state.stopped_early or (run.state.out_of_time and timed)
    epoch, step = run.state.position.epoch, run.state.position.step
    if step == run.schedule.steps_per_epoch:
        _end_epoch(model, run)
    elif step:
        build_metrics(model, run.data.training(run.state.samples))  # their unfinished sums are about to be put back
        _fit(model, run, epoch + 1)
    if run.state.position.epoch < run.schedule.epochs and not model.stop_training:
        _fit(model, run, run.schedule.epochs)


def _fit(model: keras.Model, run: TrainingRun, epochs: int) -> None:
    """Trains from the present position to the end of epoch `epochs`."""
    data, schedule, position = run.data, run.schedule, run.state.position
    own = isinstance(data.validation, OwnValidation)  # a callback calls it
    model.fit(
        data.training(run.state.samples), validation_data=None if own else data.validation,
        validation_steps=None if own else schedule.validation_steps,
        steps_per_epoch=schedule.steps_per_epoch - position.step, initial_epoch=position.epoch, epochs=epochs,
        callbacks=list(run.callbacks), shuffle=False, verbose=0,  # the stream has its own order
    )  # fmt: skip


def _end_epoch(model: keras.Model, run: TrainingRun) -> None:
    """Does what `fit` does after the last step of an epoch, for a run that was interrupted just then."""
    epoch, logs = run.state.position.epoch, dict(run.logs)
    callbacks = keras.callbacks.CallbackList(list(run.callbacks), model=model, steps=0)
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(epoch)
    if not isinstance(run.data.validation, OwnValidation):
        results = model.evaluate(
            run.data.validation, steps=run.schedule.validation_steps, callbacks=callbacks, return_dict=True, verbose=0
        )
        logs |= {f"val_{name}": value for name, value in floats(results).items()}
    callbacks.on_epoch_end(epoch, logs)
    callbacks.on_train_end()


def build_metrics(model: keras.Model, dataset: Any) -> None:
    """Makes the variables of the metrics, so that they can be set. Keras would make them in the first step."""
    import tensorflow as tf

    _, truth = dataset.element_spec[:2]
    prediction = tf.TensorSpec(model.output_shape, model.outputs[0].dtype)
    trace = tf.function(lambda y, y_pred: model.compute_metrics(None, y, y_pred), autograph=False)
    trace.get_concrete_function(truth, prediction)


def _batches(validation: Any, steps: int | None) -> int | None:
    """The validation batches of this rank, at most `steps`: Keras warns if there are fewer than it expects."""
    if isinstance(validation, OwnValidation):
        return validation.batches
    known = int(validation.cardinality()) if hasattr(validation, "cardinality") else -1
    return steps if known < 0 else min(known, steps or known)


@contextlib.contextmanager
def _ended_on_error(callbacks: Sequence[keras.callbacks.Callback]) -> Iterator[None]:
    """Keras does not call `on_train_end` when an error leaves `fit`; callbacks that hold files or bars need it."""
    try:
        yield
    except BaseException:
        for callback in callbacks:
            with contextlib.suppress(Exception):
                callback.on_train_end()
        raise
