"""What training asks of a task, and of the material that it learns from. Training knows no task by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from lms3d.console import Report as Progress
    from lms3d.keras_step.report import Report
    from lms3d.ranks.world import World
    from lms3d.training.trainer import History


class Material(Protocol):
    """What is learned from. It knows no rank: datasets are made for a world, which may shrink while a job runs."""

    @property
    def training_count(self) -> int:
        """Samples of a pass over the training data, of all ranks together."""

    @property
    def validation_count(self) -> int:
        """Samples of a pass over the validation data."""

    @property
    def described(self) -> Mapping[str, Any]:
        """For config.json: "data" with the fingerprint of the data, and whatever prediction needs."""

    def training(self, first_sample: int, world: World) -> tf.data.Dataset:
        """This rank's batches (x, y) of the endless stream of samples, from number `first_sample` on; static shapes.

        x: (B, ...) float32, the input of `Task.network` with the batch in front: (B, N, N, N, C) or (B, N, N, C).
        y: (B, ...) of `Task.target_dtype`, in the shape of the network's output, such as (B, N, N, N, regions) of 0 and 1.
        """

    def validation(self, world: World) -> tf.data.Dataset:
        """This rank's share of the validation samples, once, as batches like those of `training`; the last may be smaller."""


class Task(Protocol):
    """What is learned. Methods that take no material may be called before there is any.

    options: an instance of the task's own class of options (`lms3d.config.TrainConfig`).
    """

    axes: int
    """Spatial axes of a sample: 2 or 3."""

    target_dtype: str
    """Of the targets y in a training batch, such as "uint8": a step is planned without data."""

    shown: Sequence[str]
    """Metrics for the progress bar, by their names in the logs, such as "loss"."""

    plateau: tuple[float, int]
    """(0.5, 10): half the learning rate after ten epochs without a better validation loss."""

    def prepare(self, options: Any, run_dir: Path, resuming: bool, world: World, progress: Progress) -> Material:
        """Reads, checks and caches the data; writes split.json (rank 0). Raises InputError or DataError."""

    def network(self, options: Any, material: Any) -> keras.Model:
        """Freshly initialised, not compiled: x of a batch -> (B, ...) of probabilities, both float32 unless the policy differs.

        material: what `prepare` returned; None if only the cost of a step matters.
        """

    def target_shape(self, options: Any, model: keras.Model) -> Sequence[int]:
        """Of y in a batch, without the batch."""

    def loss(self, options: Any, material: Any) -> Any:
        """For `compile`: a function (y, prediction) -> float32, one number or one per sample, or a `keras.losses.Loss`.

        material: as of `network`.
        """

    def metrics(self, options: Any, material: Any) -> list[Any]:
        """For `compile`: Keras metrics of (y, prediction). material: as of `network`."""

    def callbacks(self, model: keras.Model, material: Any, world: World) -> list[Any]:
        """Of this task alone. They stand at `Place.TASK`: in the logs of an epoch they find means over the ranks."""

    def demonstration_limit_bytes(self, options: Any) -> int | None:
        """A memory limit in bytes that gives LMS something to do on the embedded data, or None."""

    def finish(self, run_dir: Path, options: Any, model: keras.Model, material: Any, report: Report) -> None:
        """Figures and tables of this task, made with the best weights (rank 0)."""

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        """Rows for the table at the end: the best results, and what to type next."""
