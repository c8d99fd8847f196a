"""Scalars for TensorBoard, in the run folder. A resumed run adds a file.

TensorFlow is imported with the first row: `--tracker` is checked before TensorFlow is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lms3d.errors import StorageError
from lms3d.training.trackers import TrackedRun, Tracker

FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """Makes its file with the first row."""

    def __init__(self, run: TrackedRun) -> None:
        self._folder = run.folder / FOLDER
        self._writer: Any = None

    def log(self, row: Mapping[str, float]) -> None:
        import tensorflow as tf

        try:
            self._write(row)
        except (OSError, tf.errors.OpError) as error:  # TensorFlow's names no path
            raise StorageError(f"{self._folder}: {error}") from error

    def _write(self, row: Mapping[str, float]) -> None:
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._folder))
        with self._writer.as_default(), tf.device("CPU:0"):
            for name, value in row.items():
                tf.summary.scalar(name, value, step=int(row["epoch"]))
        self._writer.flush()

    def close(self, ending: str) -> None:
        if self._writer is not None:
            self._writer.close()
