"""All that a run needs to go on as if it had never stopped, in one file that is replaced atomically.

`last/checkpoint.npz` holds arrays (weights, optimiser slots, dropout's random states, metric sums) and a JSON text with
everything else. A `.keras` file would lack the random states and the metric sums.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.errors import InputError
from lms3d.files import replacing

_STATE = "state.json"


def path_in(run_dir: Path) -> Path:
    """Where the checkpoint of a run lies."""
    return run_dir / "last" / "checkpoint.npz"


def save(path: Path, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
    """Writes both to `path`. Raises StorageError and leaves the previous checkpoint as it was if that fails."""
    content: dict[str, Any] = {_STATE: np.frombuffer(json.dumps(state).encode(), np.uint8), **arrays}
    with replacing(path) as partial, partial.open("wb") as stream:
        np.savez(stream, **content)


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the state that `save` wrote. InputError for a file that is damaged."""
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        return arrays, json.loads(arrays.pop(_STATE).tobytes())
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read ({error}); delete it and start again without --resume") from None


def variables(model: Any) -> dict[str, Any]:
    """All that training changes in a compiled and built model: weights, random states, optimiser, by a unique name."""
    groups = {"model": model.variables, "optimizer": model.optimizer.variables}
    return {
        f"{group}/{index:04d}/{variable.path}": variable
        for group, members in groups.items()
        for index, variable in enumerate(members)
    }


def metric_variables(model: Any) -> dict[str, Any]:
    """The running sums of the loss and the metrics, by a unique name. Keras builds them when `fit` begins."""
    members = [variable for metric in model.metrics for variable in metric.variables]
    return {f"metrics/{index:04d}": variable for index, variable in enumerate(members)}


def read(named: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The values of Keras variables."""
    return {name: np.asarray(variable) for name, variable in named.items()}


def assign(named: Mapping[str, Any], arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """Sets Keras variables to the arrays of the same position. InputError if they belong to another model."""
    prefixes = {name.split("/")[0] for name in named}
    stored = sorted(name for name in arrays if name.split("/")[0] in prefixes)
    if len(stored) != len(named):
        raise InputError(f"{path} has {len(stored)} variables, this model {len(named)}; it belongs to another model")
    for name, (own_name, variable) in zip(stored, sorted(named.items()), strict=True):
        if arrays[name].shape != tuple(variable.shape):
            raise InputError(
                f"{path}: {name} has shape {_text(arrays[name].shape)}, {own_name} of this model has "
                f"{_text(variable.shape)}; the checkpoint belongs to another model"
            )
        variable.assign(arrays[name])


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
