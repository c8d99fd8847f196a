"""The tasks that a run can learn, by name. A new one is a folder here, and a line below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lms3d.registry import Registry

if TYPE_CHECKING:
    from lms3d.config import TrainConfig
    from lms3d.training.task import Task

TASKS: Registry[Task] = Registry(
    "task", brats="lms3d.tasks.brats.task:TASK", chexnet="lms3d.tasks.chexnet.task:TASK"
)  # fmt: skip


def task_of(options: TrainConfig) -> Task:
    """The task that the options name."""
    return TASKS[options.task]
