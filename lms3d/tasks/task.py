"""What a task is: what it declares, what training asks of it (`lms3d.training.task`), how it predicts and scores.

    tasks/mine/options.py   class MineConfig(TrainConfig): its defaults, networks and losses, and the options of its own
               task.py      class Mine(Task) and TASK = Mine(), named in `lms3d.tasks.TASKS`
               predict.py   predict(request: PredictRequest)
               evaluate.py  evaluate(request: EvaluateRequest)

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

    from lms3d.config import TrainConfig
    from lms3d.console import Report as Progress
    from lms3d.keras_step.report import Report
    from lms3d.ranks.world import World
    from lms3d.tasks.inference import Predictor
    from lms3d.training.trainer import History

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run whose network is applied, or a package made of one."""

    run_dir: Path
    """Its folder, or the package's file."""
    trained: Any
    """The options of the run, of its task's class (`Task.options`)."""
    content: Mapping[str, Any]
    """All of its config.json; of a package what its task has put there."""
    network: Callable[[], AbstractContextManager[Predictor]]
    """Opens the run's network; of the first run of a request it starts TensorFlow. To be called once the input has been found in
    order."""

    @property
    def name(self) -> str:
        """For tables and figures."""
        return self.run_dir.resolve().name.removesuffix(".lms3d")

    @property
    def default_output(self) -> Path:
        """Where its predictions go. Beside a package there may be other packages, and the predictions of its run."""
        if self.run_dir.is_dir():
            return self.run_dir / "predictions"
        return self.run_dir.with_name(f"{self.run_dir.name.removesuffix('.lms3d')}-predictions")


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """One call of `lms3d.predict`."""

    runs: tuple[TrainedRun, ...]
    """One, or an ensemble whose probabilities are averaged."""
    data: Path | None
    """None: what the run validated or tested on."""
    labels: str | None
    output: Path
    tta: str | None
    """Symmetries over which predictions are averaged, one of `data.brats.symmetries.SETS`; "all" of an image are two."""
    progress: Progress
    cases: Path | None = None
    """A text file with the names of the cases to predict, one a line; None: all."""
    remove_below_ml: float = 0.0
    """Volume below which a connected component of the whole tumour is removed."""

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
    """None: beside the predictions."""
    truth: str | None = None
    labels: str | None = None
    scoring: str | None = None
    """Rules by name; None: those of the labels."""
    prediction_labels: str | None = None
    """Coding of the predictions; None: that of the truth."""
    groups: tuple[tuple[str, tuple[Path, ...]], ...] = ()
    """(name, predictions of its models, which differ in their seed), beside `predictions`."""
    margin: float | None = None
    """Of Dice, within which two predictions count as equal; None: 0.01."""
    submission: Path | None = None
    """Where to write the predictions as the challenge wants them, in place of scoring."""
    worst: int | None = None
    """Cases on the page of the worst; None: 6."""


def refuse(given: Mapping[str, object], why: str) -> None:
    """InputError for the first of these options, by name, that the user gave: `why` it cannot do anything here."""
    for option, value in given.items():
        if value is not None and value != ():
            raise InputError(f"{option} {why}; leave it out")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What `lms3d.evaluate` prints."""

    table: str
    """Markdown."""
    written: Sequence[Path]


def chief_first(world: World, make: Callable[[], T]) -> T:
    """`make()` on rank 0, then on all: what is wrong is told once, and on a shared disk the others find all made."""
    world.from_chief(lambda: make() and None)
    return make()


class Task(training.Task):
    """A task may leave out what is defined here. The `options` that methods are given are an instance of its `options`."""

    options: type[TrainConfig]

    def target_shape(self, options: Any, model: keras.Model) -> Sequence[int]:
        shape: Sequence[int] = model.output_shape[1:]
        return shape

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

    def packaged(self, run_dir: Path, options: Any, content: Mapping[str, Any]) -> dict[str, Any]:
        """What a package says besides the options in `lms3d.tasks.packages.description`, as JSON values: "outputs",
        which has their names, "channels" of the input, and how samples are prepared. content: of config.json. InputError where
        the run cannot be packaged."""
        raise InputError(f"{run_dir}: task {options.task} cannot be packaged; predict from the run itself")

    def unpacked(self, said: Mapping[str, Any], options: Any, where: str) -> dict[str, Any]:
        """What `predict` takes as the `content` of the run, from what `packaged` said. ValueError if it cannot be used.
        where: the file, for messages."""
        raise InputError(f"{where}: task {options.task} cannot be packaged; predict from the run itself")

    def recognises(self, path: Path) -> bool:
        """Whether `path`, a PREDICTIONS of `lms3d.evaluate`, holds predictions of this task."""
        raise NotImplementedError

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Scores predictions; writes tables and figures."""
        evaluation: Evaluation = self._beside("evaluate").evaluate(request)
        return evaluation

    def _beside(self, name: str) -> ModuleType:
        """The module in the task's own folder, imported when it is needed: it loads TensorFlow, pandas, nibabel."""
        return import_module(f"{type(self).__module__.rpartition('.')[0]}.{name}")
