"""The variables of a Keras model, under names that are the same in every process. Ranks and checkpoints use these names.

`variables`: all that training changes. `metric_variables`: the sums of the epoch so far. `own_variables`: the variables of the
model that differ between ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lms3d.errors import InputError

Arrays = dict[str, np.ndarray]


def variables(model: Any) -> dict[str, Any]:
    """The weights, random states and optimiser variables of a compiled and built model."""
    groups = {"model": model.variables, "optimizer": model.optimizer.variables}
    return {
        f"{group}/{index:04d}/{variable.path}": variable
        for group, members in groups.items()
        for index, variable in enumerate(members)
    }


def metric_variables(model: Any) -> dict[str, Any]:
    """The running sums of the loss and the metrics. Keras builds them when `fit` begins."""
    members = [variable for metric in model.metrics for variable in metric.variables]
    return {f"metrics/{index:04d}": variable for index, variable in enumerate(members)}


def own_variables(model: Any) -> dict[str, Any]:
    """The moving statistics, which differ between two ends of epochs, and the random states."""
    return {f"own/{index:04d}": v for index, v in enumerate(model.variables) if not v.trainable}


def read(named: Mapping[str, Any]) -> Arrays:
    """The values of Keras variables."""
    return {name: np.asarray(variable) for name, variable in named.items()}


def not_finite(named: Mapping[str, Any]) -> str:
    """The name of the first Keras variable with a value that is not finite; "" if there is none."""
    for name, variable in named.items():
        if is_float(variable) and not np.isfinite(np.asarray(variable)).all():
            return name
    return ""


def assign(named: Mapping[str, Any], arrays: Mapping[str, np.ndarray], source: object) -> None:
    """Sets each Keras variable to the array at its position. InputError, which names `source`, if they do not match."""
    prefixes = {name.split("/")[0] for name in named}
    stored = sorted(name for name in arrays if name.split("/")[0] in prefixes)
    if len(stored) != len(named):
        raise InputError(f"{source} has {len(stored)} variables, this model {len(named)}; it belongs to another model")
    for name, (own_name, variable) in zip(stored, sorted(named.items()), strict=True):
        if arrays[name].shape != tuple(variable.shape):
            raise InputError(
                f"{source}: {name} has shape {_text(arrays[name].shape)}, {own_name} of this model has "
                f"{_text(variable.shape)}; the checkpoint belongs to another model"
            )
        variable.assign(arrays[name])


def is_float(variable: Any) -> bool:
    """Whether a Keras variable holds floating-point numbers."""
    return "float" in str(variable.dtype)


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
