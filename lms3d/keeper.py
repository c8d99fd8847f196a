"""The callbacks that keep a run: best weights, history, and a checkpoint from which it goes on exactly."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms3d import checkpoint
from lms3d.distributed import World
from lms3d.errors import Diverged, Interrupted
from lms3d.files import replacing, write_text
from lms3d.interrupt import Interrupt

Row = dict[str, float]
FIRST_COLUMNS = ("epoch", "loss", "val_loss", "learning_rate", "seconds")


@dataclass(frozen=True)
class Position:
    """How far a run is: `step` steps of `epoch` are done (from 0). With all steps done, validation is still due."""

    epoch: int = 0
    step: int = 0


class Keeper(keras.callbacks.Callback):
    """Stands last in the list of callbacks, so that it saves what the others have decided and restores what they reset.

    watched: the other callbacks whose attributes belong to the state of the run, as name -> (callback, attributes).
    rows: the finished epochs, one per line of history.csv; this callback appends to it.
    """

    def __init__(
        self,
        run_dir: Path,
        watched: Mapping[str, tuple[Any, tuple[str, ...]]],
        interrupt: Interrupt,
        world: World,
        steps_per_epoch: int,
    ) -> None:
        super().__init__()
        self.run_dir, self.watched, self.interrupt, self.world = run_dir, watched, interrupt, world
        self.steps_per_epoch = steps_per_epoch
        self.rows: list[Row] = []
        self.position = Position()
        self.best_loss = math.inf
        self.stopped_early = False
        self.training_logs: Row = {}  # of the epoch under way, after its last step
        self._states: dict[str, dict[str, Any]] = {}
        self._metrics: dict[str, np.ndarray] = {}  # to be put back when the interrupted epoch begins again
        self._seconds, self._begin = 0.0, 0.0
        self._writer: Any = None

    # -- going on ------------------------------------------------------------------------------------------------------

    def resume(self, model: keras.Model) -> bool:
        """Puts model and optimiser back where the run stopped; False if there is no checkpoint."""
        path = checkpoint.path_in(self.run_dir)
        if not path.exists():
            return False
        arrays, state = checkpoint.load(path)
        checkpoint.assign(checkpoint.variables(model), arrays, path)
        self._metrics = {name: array for name, array in arrays.items() if name.startswith("metrics/")}
        self.position = Position(*state["position"])
        self.rows, self.best_loss, self._seconds = state["rows"], state["best_loss"], state["seconds"]
        self._states, self.stopped_early = state["callbacks"], state["stopped_early"]
        self.training_logs = state["training_logs"]
        return True

    def on_train_begin(self, logs: Any = None) -> None:
        self.restore_watched()

    def restore_watched(self) -> None:
        """Undoes the reset that Keras callbacks do when `fit` begins."""
        for name, values in self._states.items():
            for attribute, value in values.items():
                setattr(self.watched[name][0], attribute, value)

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch != self.position.epoch:
            self.position = Position(epoch)
        self._begin = time.monotonic()
        if self._metrics:
            checkpoint.assign(checkpoint.metric_variables(self.model), self._metrics, checkpoint.path_in(self.run_dir))
            self._metrics = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.position = Position(self.position.epoch, self.position.step + 1)
        self.training_logs = floats(logs)
        if not math.isfinite(self.training_logs.get("loss", 0.0)):
            raise Diverged(
                f"the loss is {self.training_logs['loss']} in epoch {self.position.epoch + 1}, step "
                f"{self.position.step}; try a smaller --learning-rate or --precision float32"
            )
        self._leave_if_asked()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._leave_if_asked()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        values = floats(logs)
        self.rows.append({**self._row(epoch, values), "seconds": self._seconds + time.monotonic() - self._begin})
        self._seconds = 0.0
        self.stopped_early = bool(self.watched["early_stopping"][0].stopped_epoch)
        if self.world.is_chief:
            self._write_scalars(self.rows[-1])
            write_text(self.run_dir / "history.csv", as_csv(self.rows))
            self._keep_best(values)
        self._capture_states()
        self.position = Position(epoch + 1)
        self._save({})

    def on_train_end(self, logs: Any = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _row(self, epoch: int, values: Row) -> Row:
        # The plateau callback has put the rate of this epoch into the logs, before it lowered it for the next.
        rate = values.get("learning_rate", float(np.asarray(self.model.optimizer.learning_rate)))
        row = {"epoch": epoch + 1, **values, "learning_rate": rate, "seconds": 0.0}
        return {name: row[name] for name in (*FIRST_COLUMNS, *row) if name in row}

    def _keep_best(self, values: Row) -> None:
        if not values.get("val_loss", math.inf) < self.best_loss:
            return
        self.best_loss = values["val_loss"]
        with replacing(self.run_dir / "best.keras") as partial:
            without_training(self.model).save(partial)

    def _write_scalars(self, row: Row) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self.run_dir / "tensorboard"))
        with self._writer.as_default(), tf.device("CPU:0"):
            for name, value in row.items():
                tf.summary.scalar(name, value, step=int(row["epoch"]))
        self._writer.flush()

    # -- saving --------------------------------------------------------------------------------------------------------

    def _leave_if_asked(self) -> None:
        if self.interrupt.asked:
            self._seconds += time.monotonic() - self._begin
            within = self.position.step < self.steps_per_epoch  # else the sums are complete: `training_logs` has them
            self._save(checkpoint.read(checkpoint.metric_variables(self.model)) if within else {})
            raise Interrupted(f"interrupted in epoch {self.position.epoch + 1} after step {self.position.step}")

    def _capture_states(self) -> None:
        self._states = {
            name: {attribute: getattr(callback, attribute) for attribute in attributes}
            for name, (callback, attributes) in self.watched.items()
        }

    def _save(self, metrics: Mapping[str, np.ndarray]) -> None:
        if not self.world.is_chief:
            return
        arrays = {**checkpoint.read(checkpoint.variables(self.model)), **metrics}
        state = {
            "position": (self.position.epoch, self.position.step),
            "rows": self.rows,
            "best_loss": self.best_loss,
            "seconds": self._seconds,
            "callbacks": self._states,
            "stopped_early": self.stopped_early,
            "training_logs": self.training_logs,
        }
        checkpoint.save(checkpoint.path_in(self.run_dir), arrays, state)


def without_training(model: keras.Model) -> keras.Model:
    """The same layers and weights without loss, metrics and optimiser, so that loading needs none of their classes."""
    if not getattr(model, "inputs", None):  # a subclassed model has no graph of layers
        return model
    return keras.Model(model.inputs, model.outputs, name=model.name)


def floats(logs: Mapping[str, Any] | None) -> Row:
    """Keras logs, which may hold tensors, as plain numbers."""
    return {name: float(np.asarray(value)) for name, value in (logs or {}).items()}


def as_csv(rows: list[Row]) -> str:
    """One line per epoch, with a header."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: f"{value:.7g}" for name, value in row.items()} for row in rows)
    return stream.getvalue()
