"""What training asks of a task, and of the material that it learns from. Training knows no task by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from lms3d.config import TrainConfig
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
        """This rank's batches of the endless stream of samples, from number `first_sample` on."""

    def validation(self, world: World) -> tf.data.Dataset:
        """This rank's share of the validation samples, once."""


class Task(Protocol):
    """What is learned. Methods that take no material may be called before there is any."""

    axes: int
    """Spatial axes of a sample: 2 or 3."""

    target_dtype: str
    """Of the targets in a training batch."""

    shown: Sequence[str]
    """Metrics for the progress bar."""

    plateau: tuple[float, int]
    """Factor of the learning rate after so many epochs without a better validation loss."""

    def prepare(
        self, options: TrainConfig, run_dir: Path, resuming: bool, world: World, progress: Progress
    ) -> Material:
        """Reads, checks and caches the data; writes split.json (rank 0). Raises InputError or DataError."""

    def network(self, options: TrainConfig) -> keras.Model:
        """Freshly initialised, not compiled."""

    def loss(self, options: TrainConfig, material: Any) -> Any:
        """For `compile`. `material` is None where only the step's cost matters."""

    def metrics(self, options: TrainConfig, material: Any) -> list[Any]:
        """For `compile`."""

    def callbacks(self, model: keras.Model, material: Any, world: World) -> list[Any]:
        """Of this task alone. They stand at `Place.TASK`: in the logs of an epoch they find means over the ranks."""

    def demonstration_limit(self, options: TrainConfig) -> int | None:
        """A memory limit in bytes that gives LMS something to do on the embedded data, or None."""

    def finish(self, run_dir: Path, options: TrainConfig, model: keras.Model, material: Any, report: Report) -> None:
        """Figures and tables of this task, made with the best weights (rank 0)."""

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        """Rows for the table at the end: the best results, and what to type next."""
