"""The interface between training and a task, and the material that the task learns from. Training knows no task by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from lms3d.console import ProgressReport
    from lms3d.keras_step.report import Report
    from lms3d.ranks.world import World
    from lms3d.training.trainer import History
    from lms3d.training.validation import OwnValidation


class Material(Protocol):
    """The data that a task learns from. It knows no rank: its datasets are made for a world, which may shrink during a job."""

    @property
    def training_count(self) -> int:
        """The samples of one pass over the training data, on all ranks together."""

    @property
    def validation_count(self) -> int:
        """The samples of one pass over the validation data."""

    @property
    def described(self) -> Mapping[str, Any]:
        """What config.json says of it: "data" with the fingerprint of the data, and whatever prediction needs."""

    def training(self, first_sample: int, world: World) -> tf.data.Dataset:
        """This rank's batches (x, y) of the endless stream of samples, from number `first_sample` on; static shapes.

        x: (B, ...) float32, the input of `Task.network` with the batch in front: (B, N, N, N, C) or (B, N, N, C).
        y: (B, ...) of `Task.target_dtype`, in the shape of the network's output, such as (B, N, N, N, regions) of 0 and 1.
        """

    def validation(self, world: World) -> tf.data.Dataset:
        """This rank's share of the validation samples, once, in batches as `training` makes them; the last may be smaller."""


class Task(Protocol):
    """One kind of learning problem. Methods that take no material may be called before there is any.

    options: an instance of the task's own class of options (`lms3d.config.TrainConfig`).
    """

    axes: int
    """The number of spatial axes of a sample: 2 or 3."""

    target_dtype: str
    """The dtype of the targets y in a training batch, such as "uint8": a step is planned without data."""

    shown: Sequence[str]
    """The metrics that the progress bar shows, by their names in the logs, such as "loss"."""

    plateau: tuple[float, int]
    """(factor, epochs): (0.5, 10) halves the learning rate after ten epochs without a better validation loss."""

    def prepare(self, options: Any, run_dir: Path, resuming: bool, world: World, progress: ProgressReport) -> Material:
        """Reads, checks and caches the data; writes split.json (rank 0). Raises InputError or DataError."""

    def network(self, options: Any, material: Any) -> keras.Model:
        """A freshly initialised network, not compiled: x of a batch -> probabilities (B, ...), float32 unless the policy differs.

        material: what `prepare` returned; None if only the cost of a step matters.
        """

    def target_shape(self, options: Any, model: keras.Model) -> Sequence[int]:
        """The shape of y, without the batch."""

    def loss(self, options: Any, material: Any) -> Any:
        """The loss for `compile`: a function (y, prediction) -> float32, one number or one per sample, or a `keras.losses.Loss`.

        material: see `network`.
        """

    def metrics(self, options: Any, material: Any) -> list[Any]:
        """The Keras metrics of (y, prediction) for `compile`. material: see `network`."""

    def validation(self, options: Any, material: Any, world: World, scratch: Path) -> tf.data.Dataset | OwnValidation:
        """This rank's validation: the dataset of the material, or one of the task's own. scratch: a folder for temporary files."""

    def validation_cost(self, options: Any, material: Any) -> float:
        """How often a validation step runs the network: 1, or more for windows."""

    def callbacks(self, model: keras.Model, material: Any, world: World) -> list[Any]:
        """Callbacks of this task alone. They run at `Place.TASK`: the logs of an epoch hold means over the ranks by then."""

    def demonstration_limit_bytes(self, options: Any) -> int | None:
        """A memory limit in bytes that gives LMS something to do on the embedded data, or None."""

    def finish(self, run_dir: Path, options: Any, model: keras.Model, material: Any, report: Report) -> None:
        """Writes the figures and tables of this task, made with the best weights (on rank 0)."""

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        """The rows of the table at the end: the best results, and what to type next."""
