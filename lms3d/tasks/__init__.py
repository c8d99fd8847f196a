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
    _require_sense(options, given)
    for option, value, possible in (
        ("model", options.model, choices.models), ("loss", options.loss, choices.losses),
    ):  # fmt: skip
        if value not in possible:
            raise InputError(f"--{option} {value} is not for --task {name}; expected one of {', '.join(possible)}")
    return options


def _require_sense(options: TrainConfig, given: dict[str, Any]) -> None:
    """InputError where one option takes the sense from another."""
    for option, needed, why in (
        ("fold", options.folds, "without --folds there are none"),
        ("symmetries", options.augment, "--no-augment shows samples as they are"),
    ):
        if option in given and not needed:
            raise InputError(f"--{option} {given[option]}: {why}; leave one of them out")
    if options.folds and options.fold >= options.folds:
        last = options.folds - 1
        raise InputError(f"--fold {options.fold} of --folds {options.folds}: expected 0 to {last}; choose one of these")
    ways = [name for name in ("split", "folds", "validation_fraction") if given.get(name) is not None]
    if len(ways) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in ways[:2])
        raise InputError(f"{first} and {second}: each says who validates; leave one of them out")
    if options.distort:
        from data.brats.distortions import check_names

        check_names(options.distort)
    if options.deep_supervision and options.model != "isensee2017":
        raise InputError(f"--deep-supervision: {options.model} has one head; leave it out, or take --model isensee2017")
    smallest = min(options.volume_shape())
    if options.patch and options.patch > smallest:
        whole = options.size_text().split(" of ")[-1]
        raise InputError(f"--patch {options.patch}: expected at most the volume, {whole}; choose a smaller one")
    if options.stages and options.patch:
        raise InputError("--stages trains whole volumes and --patch parts of them; leave one of them out")
    if options.stages and options.stages[-1][0] >= smallest:
        last, own = options.stages[-1][0], options.size_text()
        raise InputError(f"--stages: the last is {last}^3, and the run itself {own}; expected lower ones")
    if options.start_from and not (options.start_from / "best.keras").is_file():
        raise InputError(
            f"--start-from {options.start_from}: found no best.keras there; expected the folder of a run that has finished an epoch"
        )
