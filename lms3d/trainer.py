"""Training with Keras `fit` underneath, for any compiled model: knows no task.

An undisturbed run and one that was interrupted and resumed, however often, end with the same bits (on a CPU):
the training data is a function of the step, and `Keeper` saves all other state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from lms3d.distributed import World
from lms3d.interrupt import Interrupt
from lms3d.keeper import Keeper, Position, Row, floats

PLATEAU_FACTOR, PLATEAU_PATIENCE = 0.5, 10  # the case study's: half the rate after ten epochs that bring nothing


@dataclass(frozen=True, kw_only=True)
class History:
    """What came of a run."""

    rows: list[Row]
    """One per epoch: epoch (from 1), loss, val_loss, learning_rate, seconds, metrics."""

    stopped_early: bool
    """Whether the validation loss stopped getting better."""

    resumed_at: Position | None
    """Where an earlier run was taken up."""


def train(
    model: keras.Model,
    training: Callable[[int], Any],
    validation: Any,
    *,
    steps_per_epoch: int,
    epochs: int,
    run_dir: Path,
    validation_steps: int | None = None,
    patience: int = 50,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    world: World | None = None,
    resume: bool = False,
    on_interrupt: Callable[[], None] = lambda: None,
) -> History:
    """Trains `model` (compiled, its optimiser built) for at most `epochs`; writes history.csv, best.keras and last/.

    training: first step -> endless dataset of batches from that step on; validation: finite dataset.
    on_interrupt: called from another thread at the first Ctrl-C, to tell the user that the step is being finished.
    Raises Interrupted after Ctrl-C, with `last/` saved, and Diverged for a loss that is not finite.
    """
    world = world or World()
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", PLATEAU_FACTOR, PLATEAU_PATIENCE, mode="min")
    early = keras.callbacks.EarlyStopping("val_loss", patience=patience, mode="min")
    with Interrupt(on_interrupt) as interrupt:
        keeper = Keeper(
            run_dir,
            {
                "plateau": (plateau, ("best", "wait", "cooldown_counter")),
                "early_stopping": (early, ("best", "wait", "best_epoch", "stopped_epoch")),
            },
            interrupt,
            world,
            steps_per_epoch,
        )
        resumed_at = keeper.position if resume and keeper.resume(model) else None
        every = [*callbacks, plateau, early, keeper]

        def fit(first_epoch: int, last_epoch: int, first_step: int) -> None:
            model.fit(
                training(first_epoch * steps_per_epoch + first_step),
                validation_data=validation,
                validation_steps=validation_steps,
                steps_per_epoch=steps_per_epoch - first_step,
                initial_epoch=first_epoch,
                epochs=last_epoch,
                callbacks=every,
                shuffle=False,  # the data comes in the order that it should
                verbose=0,
            )

        with _ended_on_error(callbacks):
            model.stop_training = keeper.stopped_early
            if keeper.position.step == steps_per_epoch:
                _validate_and_end_epoch(model, validation, validation_steps, every, keeper)
            elif keeper.position.step:
                _build_metrics(model, validation)
                fit(keeper.position.epoch, keeper.position.epoch + 1, keeper.position.step)
            if keeper.position.epoch < epochs and not model.stop_training:
                fit(keeper.position.epoch, epochs, 0)
    return History(rows=keeper.rows, stopped_early=keeper.stopped_early, resumed_at=resumed_at)


def _validate_and_end_epoch(
    model: keras.Model, validation: Any, steps: int | None, callbacks: list[Any], keeper: Keeper
) -> None:
    """What `fit` does after the last step of an epoch, for a run that was interrupted right there."""
    *given, plateau, early, _ = callbacks
    for callback in callbacks:
        callback.set_model(model)
    for callback in (plateau, early):
        callback.on_train_begin()
    keeper.restore_watched()
    training_logs, epoch = keeper.training_logs, keeper.position.epoch
    keeper.on_epoch_begin(epoch)
    results = model.evaluate(validation, steps=steps, callbacks=[*given, keeper], return_dict=True, verbose=0)
    logs = {**training_logs, **{f"val_{name}": value for name, value in floats(results).items()}}
    for callback in callbacks:
        callback.on_epoch_end(epoch, logs)
    keeper.on_train_end()


def _build_metrics(model: keras.Model, dataset: Any) -> None:
    """Makes the variables of the metrics, which Keras otherwise makes in the first step, so that they can be set."""
    import tensorflow as tf

    _, truth = dataset.element_spec[:2]
    prediction = tf.TensorSpec(model.output_shape, model.outputs[0].dtype)
    trace = tf.function(lambda y, y_pred: model.compute_metrics(None, y, y_pred), autograph=False)
    trace.get_concrete_function(truth, prediction)


@contextlib.contextmanager
def _ended_on_error(callbacks: Sequence[keras.callbacks.Callback]) -> Any:
    """Keras does not call `on_train_end` when an error leaves `fit`; callbacks that hold files or bars need it."""
    try:
        yield
    except BaseException:
        for callback in callbacks:
            with contextlib.suppress(Exception):
                callback.on_train_end()
        raise
