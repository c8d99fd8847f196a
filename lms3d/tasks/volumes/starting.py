"""The weights that a run starts from: of another run, a package, or a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d.atomic_files import require_checksums
from lms3d.console import say
from lms3d.data.words import counted
from lms3d.errors import InputError

if TYPE_CHECKING:
    import keras
    import numpy as np

    from lms3d.tasks.volumes.options import VolumeConfig

_NAMED = 4  # weights that a message names


def start(model: keras.Model, options: VolumeConfig) -> None:
    """Gives a fresh network the weights that --start-from or --weights names. InputError if they are of no use."""
    if options.start_from is not None:
        _require_same_network(options.model, options.start_from)
        take_fitting(model, options.start_from)
    if options.weights is not None:
        load(model, options.weights, f"--weights {options.weights}")


def _require_same_network(model: str, path: Path) -> None:
    """InputError for the weights of another network, of which a few would fit by chance. Without a config.json nobody knows."""
    from lms3d import tasks
    from lms3d.tasks.packages import package

    if path.is_file():
        found = package.open_package(path).trained.model
    elif (path / "config.json").is_file():
        found = tasks.load(path)[0].model
    else:
        return
    if found != model:
        raise InputError(
            f"--start-from {path}: found weights of {found}; expected those of {model}; add --model {found}, or give another run"
        )


def take_fitting(model: keras.Model, path: Path) -> None:
    """Takes over the weights of a run or a package whose names and shapes match weights here. A message names which begin anew.

    A network for other channels keeps all but its first convolution, one for other labels all but its heads. InputError if nothing
    fits.
    """
    option, given = f"--start-from {path}", _weights(path)
    fitting = [one for one in model.weights if one.path in given and tuple(given[one.path].shape) == tuple(one.shape)]
    rest = [one for one in model.weights if not any(one is other for other in fitting)]
    if not fitting:
        raise InputError(
            f"{option}: found no weight that fits {model.name}, such as {rest[0].path} {tuple(rest[0].shape)}; expected a run or a "
            "package of the same network; give another one"
        )
    for variable in fitting:
        variable.assign(given[variable.path])
    if rest:
        share = sum(one.shape.num_elements() for one in fitting) / sum(
            one.shape.num_elements() for one in model.weights
        )
        named = ", ".join(one.path for one in rest[:_NAMED]) + (", ..." if len(rest) > _NAMED else "")
        say(
            f"{option}: {counted(len(fitting), 'weight fits', 'weights fit')}, {100 * share:.1f} % of all numbers; {len(rest)} "
            f"start anew: {named}"
        )


def _weights(path: Path) -> Mapping[str, np.ndarray]:
    """The weights of a run or a package: path in the network -> array."""
    from lms3d.tasks import inference
    from lms3d.tasks.packages import network, package

    if path.is_file():
        return package.open_package(path).weights
    return network.weights_of(inference.load_model(path / "best.keras"))


def load(model: keras.Model, path: Path, option: str) -> None:
    """Loads the weights of an earlier run, of any resolution. InputError if they belong to another network."""
    import tensorflow as tf

    try:
        if path.suffix == ".keras":
            require_checksums(path)
        model.load_weights(path)
    except tf.errors.ResourceExhaustedError:
        raise
    except Exception as error:  # of h5py, zipfile, or Keras, for files of all kinds
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise InputError(
            f"{option}: cannot be used for {model.name} ({reason}); give best.keras of a run of this network"
        ) from None
