"""One row per epoch in history.csv, and the same numbers as scalars for TensorBoard."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lms3d import errors
from lms3d.files import write_text
from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run import TrainingRun
from lms3d.training.run_state import Row, floats, learning_rate

FILE, CURVES = "history.csv", "tensorboard"
FIRST_COLUMNS = ("epoch", "loss", "val_loss", "learning_rate", "seconds")


class HistoryFile(TrainingCallback):
    """Adds a row to the state at the end of each epoch; rank 0 writes it down."""

    place = Place.HISTORY

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self._writer: Any = None
        self._draws = True  # until the disk fails

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.run.start_clock()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        run = self.run
        run.stop_clock()
        rate = learning_rate(self.model)  # the logs overrule it if the plateau callback has put this epoch's rate there
        row = {"epoch": epoch + 1, "learning_rate": rate, **floats(logs), "seconds": run.state.seconds}
        row = {name: row[name] for name in (*FIRST_COLUMNS, *row) if name in row}
        run.update(rows=(*run.state.rows, row), seconds=0.0)
        if run.world.is_chief:
            if self._draws:
                self._or_without(lambda: self._write_scalars(row))
            write_text(run.dir / FILE, as_csv(run.state.rows))

    def on_train_end(self, logs: Any = None) -> None:
        if self._writer is not None:
            self._or_without(self._writer.close)
            self._writer = None

    def _or_without(self, write: Callable[[], None]) -> None:
        """TensorBoard's files repeat history.csv: if they cannot be written, training goes on without them."""
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            self._writer, self._draws = None, False
            errors.say(
                f"{self.run.dir / CURVES}: {error}; training goes on, and its next epochs are not in TensorBoard"
            )

    def _write_scalars(self, row: Row) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self.run.dir / CURVES))
        with self._writer.as_default(), tf.device("CPU:0"):
            for name, value in row.items():
                tf.summary.scalar(name, value, step=int(row["epoch"]))
        self._writer.flush()


def as_csv(rows: Sequence[Row]) -> str:
    """One line per epoch, with a header."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: f"{value:.7g}" for name, value in row.items()} for row in rows)
    return stream.getvalue()
