"""The base class of a task: its options, what training asks of it (`lms3d.training.task`), how it predicts and scores.

    tasks/mine/options.py   class MineConfig(TrainConfig): its defaults, networks and losses, and the options of its own
               task.py      class Mine(Task) and TASK = Mine(), named in `lms3d.tasks.TASKS`
               predict.py   predict(request: PredictRequest)
               evaluate.py  evaluate(request: EvaluateRequest)
               package.py   packaged and unpacked, with the arguments of `Task`'s, if its runs can be packaged

Neither task.py nor options.py imports TensorFlow at its head: `--help` shows every task's options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from lms3d.errors import InputError
from lms3d.training import task as training

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from lms3d.config import TrainConfig
    from lms3d.console import ProgressReport
    from lms3d.keras_step.report import Report
    from lms3d.ranks.world import World
    from lms3d.training.trainer import History
    from lms3d.training.validation import OwnValidation

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run whose network is applied, or a package of one."""

    run_dir: Path
    """The folder of the run, or the file of the package."""
    trained: Any
    """The options of the run, of its task's class (`Task.options`)."""
    content: Mapping[str, Any]
    """The whole content of config.json; for a package, what its task has put there."""
    network: Callable[..., AbstractContextManager[Any]]
    """Opens the run's network as a Predictor, or with `streamed=True` as a Streamer (`lms3d.tasks.inference`). The first one starts
    TensorFlow. Call it after the input has been checked."""

    @property
    def name(self) -> str:
        """The name in tables and figures."""
        return self.run_dir.resolve().name.removesuffix(".lms3d")

    @property
    def default_output(self) -> Path:
        """The folder for its predictions. Beside a package there may be other packages, and the predictions of its run."""
        if self.run_dir.is_dir():
            return self.run_dir / "predictions"
        return self.run_dir.with_name(f"{self.run_dir.name.removesuffix('.lms3d')}-predictions")


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """One call of `lms3d.predict`."""

    runs: tuple[TrainedRun, ...]
    """One run, or an ensemble whose probabilities are averaged."""
    data: Path | None
    """The data to predict; None: what the run validated or tested on."""
    labels: str | None
    output: Path
    tta: str | None
    """The symmetries over which predictions are averaged, one of `lms3d.data.volumes.symmetries.SETS`; None: none. Any of them
    averages an image with its mirror image."""
    progress: ProgressReport
    cases: Path | None = None
    """A text file with the names of the cases to predict, one per line; None: all."""
    remove_below_ml: float = 0.0
    """The volume in ml below which a connected component of the whole tumour, or of an organ, is removed."""
    uncertainty: bool = False
    """Whether the entropy of the probabilities is written, too."""
    form: str = "nifti"
    """ "nifti", or "dicom-seg" for DICOM files beside them."""

    @property
    def run_dir(self) -> Path:
        """The folder of the first run, or the package's file."""
        return self.runs[0].run_dir

    @property
    def trained(self) -> Any:
        """The options of the first run, of its task's class."""
        return self.runs[0].trained


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """One call of `lms3d.evaluate`; all PREDICTIONS are of one task."""

    predictions: tuple[Path, ...]
    output: Path | None
    """The folder for tables and figures; None: beside the predictions."""
    truth: str | None = None
    labels: str | None = None
    scoring: str | None = None
    """The rules by name; None: those of the labels."""
    prediction_labels: str | None = None
    """The coding of the predictions; None: that of the truth."""
    groups: tuple[tuple[str, tuple[Path, ...]], ...] = ()
    """(name, predictions of models that differ in their seed) of each group, in addition to `predictions`."""
    pools: tuple[tuple[str, tuple[Path, ...]], ...] = ()
    """(name, predictions of the folds of a cross-validation) of each pool, in addition to `predictions`: no case is in two folds,
    and all are scored as one prediction."""
    margin: float | None = None
    """The difference in Dice within which two predictions count as equal; None: 0.01."""
    submission: Path | None = None
    """The folder for the predictions in the form that the challenge asks for, in place of scoring; None: score."""
    worst: int | None = None
    """The number of cases on the page of the worst; None: 6."""
    command: tuple[str, ...] = ()
    """What was typed, for the page; empty if it is not to be shown."""


def refuse(given: Mapping[str, object], why: str) -> None:
    """InputError for the first of these options that the user gave. why: the reason for which it means nothing here."""
    for option, value in given.items():
        if value is not None and value != ():
            raise InputError(f"{option} {why}; leave it out")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result that `lms3d.evaluate` prints."""

    table: str
    """Markdown."""
    written: Sequence[Path]


def chief_first(world: World, make: Callable[[], T]) -> T:
    """The result of `make()`, called on rank 0 and then on all: an error is reported once, and on a shared disk the others find
    everything made."""
    world.from_chief(lambda: make() and None)
    return make()


class Task(training.Task):
    """The methods defined here may be left out. Their argument `options` is an instance of the class in the attribute `options`."""

    options: type[TrainConfig]

    planned_by_data: bool = True
    """Whether a training step depends on the data set: on its channels, its labels or the size of its voxels."""

    def read_data(self, options: Any) -> None:
        """Reads what a step depends on from `options.data`, before TensorFlow starts: a plan has no material. InputError or
        DataError if the data cannot be used."""

    def target_shape(self, options: Any, model: keras.Model) -> Sequence[int]:
        shape: Sequence[int] = model.output_shape[1:]
        return shape

    def validation(self, options: Any, material: Any, world: World, scratch: Path) -> tf.data.Dataset | OwnValidation:
        dataset: tf.data.Dataset = material.validation(world)
        return dataset

    def validation_cost(self, options: Any, material: Any) -> float:
        return 1.0

    def callbacks(self, model: keras.Model, material: Any, world: World) -> list[Any]:
        return []

    def demonstration_limit_bytes(self, options: Any) -> int | None:
        return None

    def finish(self, run_dir: Path, options: Any, model: keras.Model, material: Any, report: Report) -> None:
        return None

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        return {}

    def predict(self, request: PredictRequest) -> tuple[str, dict[str, str]]:
        """Writes predictions to `request.output`; returns the title and the rows of the summary."""
        summary: tuple[str, dict[str, str]] = self._beside("predict").predict(request)
        return summary

    def sample(self, run: TrainedRun) -> tuple[str, np.ndarray] | None:
        """A case of the run's data as its network takes it, (*shape, channels) float32, and its name in a sentence, such as "case
        BRATS_001". None if the task knows of none. InputError or DataError if the data are not there."""
        return None

    def packaged(self, run_dir: Path, options: Any, content: Mapping[str, Any]) -> dict[str, Any]:
        """What a package says besides the options (`lms3d.tasks.packages.description`), as JSON values: the names of the "outputs",
        the "channels" of the input, and how samples are prepared. content: that of config.json. InputError if the run cannot be
        packaged."""
        said: dict[str, Any] = self._package(options, str(run_dir)).packaged(run_dir, options, content)
        return said

    def unpacked(self, said: Mapping[str, Any], options: Any, where: str) -> dict[str, Any]:
        """The `content` that `predict` takes, from what `packaged` said. ValueError if it cannot be used. where: the file, for
        messages."""
        content: dict[str, Any] = self._package(options, where).unpacked(said, options, where)
        return content

    def _package(self, options: TrainConfig, where: str) -> ModuleType:
        """The task's package.py. InputError if it has none."""
        try:
            return self._beside("package")
        except ModuleNotFoundError as error:
            if error.name != f"{self._folder}.package":
                raise
            raise InputError(f"{where}: task {options.task} cannot be packaged; predict from the run itself") from None

    def network_options(self, said: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The options of `models.build` that do not follow from the weights, such as the size of a voxel. said, where: see
        `unpacked`."""
        return {}

    def claims(self, data: Path) -> bool:
        """Whether `data` are for this task alone, so that --task need not be given."""
        return False

    def recognises(self, path: Path) -> bool:
        """Whether `path`, a PREDICTIONS of `lms3d.evaluate`, holds predictions of this task."""
        raise NotImplementedError

    def knows(self, truth: Path) -> bool:
        """Whether `truth`, a folder with true label maps, is a data set of this task. It decides if predictions are of another
        program."""
        return False

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Scores predictions; writes tables and figures."""
        evaluation: Evaluation = self._beside("evaluate").evaluate(request)
        return evaluation

    def _beside(self, name: str) -> ModuleType:
        """The module in the task's own folder, imported when it is needed: it loads TensorFlow, pandas, nibabel."""
        return import_module(f"{self._folder}.{name}")

    @property
    def _folder(self) -> str:
        """The package of the task's modules, such as "lms3d.tasks.brats"."""
        return type(self).__module__.rpartition(".")[0]
