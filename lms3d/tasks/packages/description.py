"""model.json: everything that prediction needs to know about a run, and its origin.

    format, format_version    "lms3d package", 1
    task, options             the task, and those options that change a prediction
    meaning                   the meaning of the outputs, and how samples are prepared: see `Task.packaged`
    network                   input_shape (D, H, W, C) or (H, W, 3), outputs, build options, [path, shape] of each weight
    provenance                versions, command, seed, data, best epoch: for the reader; nothing depends on it

Options of the machine (memory limit, swap folder, data folder) are left out: the machine that predicts has its own.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.cli import PRECISIONS
from lms3d.common import program
from lms3d.config import TrainConfig
from lms3d.errors import InputError
from lms3d.tasks import TASKS, task_of
from lms3d.tasks.packages.archive import FORMAT, VERSION
from lms3d.tasks.task import Task

LARGEST_SIDE = 2048


def options_of(task: Task) -> list[str]:
    """The options that change a prediction, which a package of this task keeps."""
    return ["model", "resolution", *(name for name, one in task.options.own().items() if one.predicts), "precision"]


def describe(
    run_dir: Path, options: TrainConfig, content: Mapping[str, Any], said: Mapping[str, Any],
    weights: Mapping[str, np.ndarray], build_options: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The content of model.json for a run. said: see `Task.packaged`. weights: path -> array."""
    task, values = task_of(options), options.to_json()
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "task": options.task,
        "options": {name: values[name] for name in options_of(task)},
        "meaning": dict(said),
        "network": {
            "input_shape": input_shape(options, task, said),
            "outputs": len(said["outputs"]),
            "options": dict(build_options),
            "weights": [[path, list(array.shape)] for path, array in weights.items()],
        },
        "provenance": {
            "versions": content.get("versions"),
            "command": program.without_folders(content.get("command", [])),
            "seed": options.seed,
            "data": {name: value for name, value in content.get("data", {}).items() if name != "shards"},
            "best": best_epoch(run_dir / "history.csv"),
        },
    }


def input_shape(options: TrainConfig, task: Task, said: Mapping[str, Any]) -> list[int]:
    """The shape that the network takes at once, without the batch."""
    return [*options.sample_shape(task.axes), len(said["channels"])]


def options_from(model: Mapping[str, Any]) -> TrainConfig:
    """The options in a model.json, as a run on this machine would have them. ValueError or InputError if no run can have them."""
    task = TASKS[_of(str, model, "task")]
    values, names = _of(dict, model, "options"), options_of(task)
    if sorted(values) != sorted(names):
        raise ValueError(
            f"found options {', '.join(sorted(map(str, values)))[:200]}, expected {', '.join(sorted(names))}"
        )
    for name, value in values.items():
        if not _possible(task.options, name, value):
            raise ValueError(f"found option {name} {str(value)[:60]!r}, which no run can have")
    return _with(task.options, values)


def _with(kind: type[TrainConfig], values: Mapping[str, Any]) -> TrainConfig:
    """A task's options with these JSON values, and the defaults of this version for all others."""
    none_given: dict[str, Any] = {}
    return kind.from_json({**kind(**none_given).to_json(), **values})


def _possible(kind: type[TrainConfig], name: str, value: Any) -> bool:
    """Whether a run of the task with these options can have this value of one of them."""
    own = kind.own()
    possible = own[name].possible if name in own else {"model": kind.models, "precision": PRECISIONS}.get(name)
    if possible is not None:
        return value in possible
    try:
        options = _with(kind, {name: value})
    except (ValueError, TypeError):
        return False
    step = getattr(kind, "step", 16)
    return all(step <= side <= LARGEST_SIDE and side % step == 0 for side in options.sides().get(name, ()))


def _of(kind: type, values: Mapping[str, Any], name: str) -> Any:
    if not isinstance(value := values.get(name), kind):
        raise ValueError(f"found {name} {str(value)[:60]!r}, expected {kind.__name__}")
    return value


def best_epoch(path: Path) -> dict[str, Any] | None:
    """The row of history.csv whose weights were kept: epoch, number of epochs, validation scores. None without that file."""
    if not path.is_file():
        return None
    try:
        with path.open(newline="") as stream:
            rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(stream)]
        best = min((row for row in rows if math.isfinite(row["val_loss"])), key=lambda row: row["val_loss"])
        scores = {name: value for name, value in best.items() if name.startswith("val_") and math.isfinite(value)}
        return {"epoch": int(best["epoch"]), "epochs": len(rows), **scores}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(
            f"{path}: found a table that cannot be used ({error}); expected one row per epoch; restore it or remove it"
        ) from None
