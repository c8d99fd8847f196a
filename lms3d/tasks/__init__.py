"""The tasks that a run can learn, by name. A new one is a folder here and a line in TASKS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lms3d.config import TrainConfig
from lms3d.errors import InputError
from lms3d.registry import Registry

if TYPE_CHECKING:
    from lms3d.tasks.task import Task

TASKS: Registry[Task] = Registry(
    "task", brats="lms3d.tasks.brats.task:TASK", chexnet="lms3d.tasks.chexnet.task:TASK"
)  # fmt: skip


def task_of(options: TrainConfig) -> Task:
    """The task that the options name."""
    return TASKS[options.task]


def chosen(given: dict[str, Any]) -> TrainConfig:
    """The options that the user gave, and the task's defaults for all others. InputError where they do not match.

    Without --task it is the one that trains --model.
    """
    name = given.get("task") or next((n for n in TASKS.names if given.get("model") in TASKS[n].choices.models), None)
    name = name or TrainConfig.task
    choices = TASKS[name].choices
    options = TrainConfig(**{**choices.defaults, **given, "task": name})
    for refused in choices.refused:
        if refused in given:
            option = "--" + refused.replace("_", "-")
            raise InputError(f"{option} is not for --task {name}, {choices.refusal}; leave {option} out")
    for option, value, possible in (
        ("model", options.model, choices.models), ("loss", options.loss, choices.losses),
    ):  # fmt: skip
        if value not in possible:
            raise InputError(f"--{option} {value} is not for --task {name}; expected one of {', '.join(possible)}")
    return options
