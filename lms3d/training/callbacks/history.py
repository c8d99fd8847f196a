"""One row per epoch in history.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from lms3d.atomic_files import write_text
from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run_state import Row, floats, learning_rate

FILE = "history.csv"
FIRST_COLUMNS = ("epoch", "loss", "val_loss", "learning_rate", "seconds")


class HistoryFile(TrainingCallback):
    """Adds a row to the state at the end of each epoch; rank 0 writes it down."""

    place = Place.HISTORY

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
            write_text(run.dir / FILE, as_csv(run.state.rows))


def as_csv(rows: Sequence[Row]) -> str:
    """One line per epoch, with a header."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: f"{value:.7g}" for name, value in row.items()} for row in rows)
    return stream.getvalue()
