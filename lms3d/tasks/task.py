"""What a task is: what it declares, what training asks of it (`lms3d.training.task`), how it predicts and scores.

    tasks/mine/task.py      class Mine(Task) and TASK = Mine(), named in `lms3d.tasks.TASKS`
               options.py   its `Choices`
               predict.py   predict(request: PredictRequest)
               evaluate.py  evaluate(request: EvaluateRequest)

Neither task.py nor options.py imports TensorFlow at its head: `--help` reads every task's choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from lms3d.tasks.choices import Choices
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
class PredictRequest:
    """One call of `lms3d.predict`."""

    run_dir: Path
    trained: TrainConfig
    """The options of the run."""
    content: Mapping[str, Any]
    """All of its config.json."""
    network: Callable[[], AbstractContextManager[Predictor]]
    """Starts TensorFlow and opens the run's network. To be called once the input has been found in order."""
    data: Path | None
    """None: what the run validated or tested on."""
    labels: str | None
    output: Path
    tta: bool
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """One call of `lms3d.evaluate`; all PREDICTIONS are of one task."""

    predictions: tuple[Path, ...]
    output: Path | None
    """None: beside the predictions."""
    truth: str | None = None
    labels: str | None = None
    hd95: bool = False


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
    """A task may leave out what is defined here."""

    choices: Choices

    def callbacks(self, model: keras.Model, material: Any, world: World) -> list[Any]:
        return []

    def demonstration_limit(self, options: TrainConfig) -> int | None:
        return None

    def finish(self, run_dir: Path, options: TrainConfig, model: keras.Model, material: Any, report: Report) -> None:
        return None

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        return {}

    def predict(self, request: PredictRequest) -> tuple[str, dict[str, str]]:
        """Writes predictions to `request.output`; returns the title and the rows of the summary."""
        summary: tuple[str, dict[str, str]] = self._beside("predict").predict(request)
        return summary

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
