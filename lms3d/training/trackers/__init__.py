"""Where the numbers of each epoch go beside history.csv (`--tracker`): one module per tracker, and the line below that names it.

TRACK-1  Trackers get numbers and options: no path, nothing that the console shows, no name of a case, and under `--anonymous` not
         even the name of the run. So they are told what not to collect by themselves.
TRACK-2  A tracker may fail in any way: `callbacks.tracking` then goes on without it.

The packages are the user's own. They are imported when training begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from lms3d import cli
from lms3d.errors import InputError
from lms3d.registry import Registry

PROJECT = "lms3d"
"""The project, or experiment, that runs are filed under if the user's environment names none."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is told of a run when it begins."""

    folder: Path

    name: str | None
    """What people call the run; None if names are hidden: the tracker then invents one."""

    options: Mapping[str, Any]
    """The options of the run, as JSON values, without paths."""

    id: str
    """What the tracker called the run when it began, if it is resumed; otherwise ""."""


class Tracker(ABC):
    """Follows one run on rank 0. `__init__` begins or continues; every method may raise anything (TRACK-2)."""

    package: ClassVar[str] = ""
    """The package that must be installed; "" if it comes with lms3d."""

    id: str = ""
    """The name by which a resumed run goes on; "" if the run folder is enough."""

    @abstractmethod
    def __init__(self, run: TrackedRun) -> None:
        """Begins a run, or continues the one called `run.id`."""

    @abstractmethod
    def log(self, row: Mapping[str, float]) -> None:
        """Notes the numbers of the epoch that `row["epoch"]` names, from 1."""

    @abstractmethod
    def close(self, ending: str) -> None:
        """Ends the record. ending: "finished", "failed" or "interrupted"."""


TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker",
    tensorboard="lms3d.training.trackers.tensorboard:TensorBoard",
    wandb="lms3d.training.trackers.wandb:WandB",
    mlflow="lms3d.training.trackers.mlflow:MLflow",
)


def named(text: str) -> tuple[str, ...]:
    """The text "tensorboard,wandb" -> ("tensorboard", "wandb"). InputError for other names, and for none."""
    names = cli.names(text)
    for name in names or ("",):
        if name not in TRACKERS:
            raise InputError(f"{name!r} is no tracker; expected {', '.join(TRACKERS.names)}, or several with commas")
    return names


def require_installed(names: Sequence[str]) -> None:
    """InputError if the package of one of these trackers is not installed."""
    for name in names:
        package = TRACKERS[name].package
        if package and not _is_installed(package):
            raise InputError(
                f"--tracker {name}: the package {package} is not installed; pip install {package}, or choose other trackers"
            )


def _is_installed(package: str) -> bool:
    """Whether it can be imported. A folder of that name, such as wandb writes into the present one, is no package."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
