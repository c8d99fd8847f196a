"""Training with Keras `fit` underneath, for any compiled model, on any number of ranks: knows no task.

An undisturbed run and one that was interrupted and resumed, however often, end with the same bits (on a CPU):
the training data is a function of the sample's number, and `Keeper` saves all other state. On another number of ranks a
resumed run goes on at the same sample, with a learning rate that is scaled as the number of ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lms3d.ranks.elastic import Memory
from lms3d.ranks.world import World
from lms3d.training.callbacks.checkpointing import Keeper, Position, Row, floats
from lms3d.training.callbacks.warm_up import WarmUp
from lms3d.training.interrupt import Interrupt


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
    plateau_factor: float = 0.5,
    plateau_patience: int = 10,
    warmup_epochs: int = 0,
    batch_size: int = 1,
    validation_weight: float = 1.0,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    world: World | None = None,
    resume: bool = False,
    memory: Memory | None = None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> History:
    """Trains `model` (compiled, its optimiser built) for at most `epochs`; writes history.csv, best.keras and last/.

    training: number of a sample -> endless dataset of this rank's batches from that sample of the common stream on.
    validation: finite dataset, this rank's share; validation_weight: the number of samples in it, 0 if they are borrowed.
    plateau_factor, plateau_patience: of the learning rate, after so many epochs without a better validation loss.
    warmup_epochs: in which the rate grows from that of one rank to the model's own, which is that of all.
    batch_size: samples of a step on one rank.
    memory: of an elastic job (see `elastic.run`); what it holds goes before what `resume` finds in the run folder.
    on_interrupt: called from another thread at the first Ctrl-C, to tell the user that the step is being finished.
    All ranks call this with the same arguments, but for their share of the data; all return or raise at the same step.
    Raises Interrupted after Ctrl-C, with `last/` saved, and Diverged for a loss that is not finite.
    """
    world = world or World()
    validation_steps = _batches(validation, validation_steps)
    if validation_steps is None and world.size > 1:
        raise ValueError("train: several ranks need validation_steps, or a validation dataset of known length")
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", plateau_factor, plateau_patience, mode="min")
    early = keras.callbacks.EarlyStopping("val_loss", patience=patience, mode="min")
    rate = float(np.asarray(model.optimizer.learning_rate))
    warm_up = WarmUp(
        rate, world.size, warmup_epochs, steps_per_epoch, lambda: (keeper.position.epoch, keeper.position.step)
    )
    with Interrupt(on_interrupt) as interrupt:
        keeper = Keeper(
            run_dir,
            {
                "plateau": (plateau, ("best", "wait", "cooldown_counter")),
                "early_stopping": (early, ("best", "wait", "best_epoch", "stopped_epoch")),
                "warm_up": (warm_up, ("cut",)),
            },
            interrupt,
            world,
            steps_per_epoch,
            validation_batches=int(world.largest([validation_steps or 0])[0]),
            batch_size=batch_size,
            memory=memory,
        )
        again = (resume or memory is not None) and keeper.resume(model, from_file=resume)
        resumed_at = keeper.position if again else None
        world.synchronise(model)
        keeper.put_back(model)
        every = [MeanOverRanks(world, validation_weight), *callbacks, plateau, early, warm_up, keeper]

        def fit(first_epoch: int, last_epoch: int, first_step: int) -> None:
            model.fit(
                training(keeper.samples),
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
                build_metrics(model, validation)
                fit(keeper.position.epoch, keeper.position.epoch + 1, keeper.position.step)
            if keeper.position.epoch < epochs and not model.stop_training:
                fit(keeper.position.epoch, epochs, 0)
    return History(rows=keeper.rows, stopped_early=keeper.stopped_early, resumed_at=resumed_at)


class MeanOverRanks(keras.callbacks.Callback):
    """Puts the mean over the ranks in the place of each rank's own losses and metrics; stands first, so that all other
    callbacks decide the same on every rank."""

    def __init__(self, world: World, validation_weight: float) -> None:
        super().__init__()
        self.world, self.validation_weight = world, validation_weight

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.world.size == 1 or logs is None:
            return
        values = floats(logs)
        validated = {name: value for name, value in values.items() if name.startswith("val_")}
        trained = {name: value for name, value in values.items() if name not in validated}
        logs.update(self.world.mean(trained))
        logs.update(self.world.mean(validated, self.validation_weight))


def _batches(validation: Any, steps: int | None) -> int | None:
    """Validation batches of this rank, of `steps` that were asked for: Keras warns where there are fewer."""
    known = int(validation.cardinality()) if hasattr(validation, "cardinality") else -1
    return steps if known < 0 else min(known, steps or known)


def _validate_and_end_epoch(
    model: keras.Model, validation: Any, steps: int | None, callbacks: list[Any], keeper: Keeper
) -> None:
    """What `fit` does after the last step of an epoch, for a run that was interrupted right there."""
    *given, plateau, early, warm_up, _ = callbacks
    for callback in callbacks:
        callback.set_model(model)
    for callback in (plateau, early):
        callback.on_train_begin()
    keeper.restore_watched()
    training_logs, epoch = keeper.training_logs, keeper.position.epoch
    keeper.on_epoch_begin(epoch)
    for callback in given:
        callback.set_params({"steps": 0})  # all steps of this epoch are done
        callback.on_epoch_begin(epoch)
    warm_up.take_up()
    results = model.evaluate(validation, steps=steps, callbacks=[*given, keeper], return_dict=True, verbose=0)
    logs = {**training_logs, **{f"val_{name}": value for name, value in floats(results).items()}}
    for callback in callbacks:
        callback.on_epoch_end(epoch, logs)
    keeper.on_train_end()


def build_metrics(model: keras.Model, dataset: Any) -> None:
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
