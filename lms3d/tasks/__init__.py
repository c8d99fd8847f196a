"""The tasks that a run can learn, by name. A new one is a folder here and a line in TASKS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.config import TrainConfig
from lms3d.registry import Registry
from lms3d.training import config_file

if TYPE_CHECKING:
    from lms3d.tasks.task import Task

TASKS: Registry[Task] = Registry(
    "task", brats="lms3d.tasks.brats.task:TASK", segmentation="lms3d.tasks.segmentation.task:TASK",
    chexnet="lms3d.tasks.chexnet.task:TASK",
)  # fmt: skip
DEFAULT_TASK = "brats"


def task_of(options: TrainConfig) -> Task:
    """The task that the options name."""
    return TASKS[options.task]


def kind_of(given: dict[str, Any]) -> type[TrainConfig]:
    """The class of the options that the user gave: that of --task, or else of the task that --data are for, or that trains
    --model."""
    data, model = given.get("data"), given.get("model")
    name = given.get("task") or (data and next((n for n in TASKS.names if TASKS[n].claims(data)), None))
    name = name or next((n for n in TASKS.names if model in TASKS[n].options.models), DEFAULT_TASK)
    return TASKS[name].options


def chosen(given: dict[str, Any]) -> TrainConfig:
    """The options that the user gave, and the task's defaults for all others. InputError if they do not match."""
    kind = kind_of(given)
    options = kind(**{name: value for name, value in given.items() if name in kind.names()})
    kind.require_own(given, options.task)
    options.check(given)
    return options


def stored(values: dict[str, Any]) -> TrainConfig:
    """The options in a config.json. Those that belong to other tasks are left out: runs of earlier versions list them all."""
    kind = TASKS[values.get("task", DEFAULT_TASK)].options
    elsewhere = {name for other in TASKS.names for name in TASKS[other].options.own()} - kind.names()
    return kind.from_json({name: value for name, value in values.items() if name not in elsewhere})


def load(run_dir: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """The options of a run, and the whole content of its config.json."""
    return config_file.load(run_dir, stored)
