"""Makes a package of a run, and opens a package as if it were a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lms3d import tasks
from lms3d.atomic_files import writable_folder
from lms3d.config import TrainConfig
from lms3d.errors import InputError
from lms3d.tasks import inference, task_of
from lms3d.tasks.packages import archive, description, network
from lms3d.tasks.packages.archive import Content
from lms3d.tasks.task import TrainedRun


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A checked package: everything that `lms3d.predict` needs."""

    trained: TrainConfig
    content: Mapping[str, Any]
    """See `Task.unpacked`."""
    weights: Mapping[str, np.ndarray]
    """The path of each weight in the network -> the array."""
    load: Callable[..., Any]
    """Builds the network and loads its weights; TensorFlow must be running. `precision=` is taken in place of the run's."""


def require_run(run_dir: Path) -> None:
    """InputError for anything but a run with weights; needs no TensorFlow."""
    tasks.load(run_dir)
    inference.require_weights(run_dir)


def target(run_dir: Path, given: Path | None) -> Path:
    """The file to write. InputError for a folder, and for a file that is no package."""
    path = given or run_dir / f"{run_dir.resolve().name}{archive.SUFFIX}"
    if path.is_dir() or (path.exists() and not archive.is_package(path)):
        what = "a folder" if path.is_dir() else "a file that is no package"
        raise InputError(f"--output {path}: found {what}; expected a new file, or a package to replace; name another")
    writable_folder(path.parent, "--output")
    return path


def trained_run(path: Path, **asked: Any) -> TrainedRun:
    """A run, or a package of one, to be applied. asked: arguments of `inference.network`. InputError if it cannot be used."""
    if path.is_file():
        package = open_package(path)
        trained, content, load = package.trained, package.content, package.load
    elif not path.exists():
        raise InputError(f"{path}: found nothing; expected a run directory or a package; check the path")
    else:
        trained, content = tasks.load(path)
        inference.require_weights(path)
        load = partial(inference.load_model, path / "best.keras")
    network = partial(inference.network, load, trained, **asked)
    return TrainedRun(run_dir=path, trained=trained, content=content, network=network)


def make(run_dir: Path) -> Content:
    """The package of a run; TensorFlow must be running. InputError if the run is damaged, unfinished or of an unknown network."""
    trained, content = tasks.load(run_dir)
    said = task_of(trained).packaged(run_dir, trained, content)
    saved = run_dir / "best.keras"
    model = inference.load_model(saved)
    try:
        weights = network.weights_of(model)
        options = network.build_options(trained.model, {path: array.shape for path, array in weights.items()})
        shape, outputs = description.input_shape(trained, task_of(trained), said), len(said["outputs"])
        more = task_of(trained).network_options(said, str(run_dir))
        training = trained.network_arguments()  # what training alone needs is not packaged
        rebuilt = network.built(trained.model, shape, outputs, weights, trained.precision, **more, **training)
        network.require_same_layers(model, rebuilt)
        if training:
            needed = network.needed(trained.model, shape, outputs, weights, trained.precision, **more)
            weights = {path: weights[path] for path in needed}
    except ValueError as error:
        raise InputError(
            f"{saved}: found a network that this version cannot build from its name, {trained.model} ({error}); expected a run of "
            "a registered network; predict from the run itself"
        ) from None
    model_json = description.describe(run_dir, trained, content, said, weights, options)
    as_read = json.loads(json.dumps(model_json))  # with lists for tuples, so that it is checked as the file would be
    return Content(model=as_read, weights=list(weights.values()))


def open_package(path: Path) -> Opened:
    """Reads and checks a package; builds nothing yet. InputError, in one line, if the package cannot be used."""
    return opened(archive.read(path), path)


def opened(content: Content, path: Path) -> Opened:
    """A checked package with this content. path: where it comes from, for messages. InputError if it cannot be used."""
    try:
        trained = description.options_from(content.model)
        said = content.model.get("meaning")
        if not isinstance(said, dict):
            raise ValueError("found no description of its outputs")
        unpacked = task_of(trained).unpacked(said, trained, str(path))
        weights = _named(content)
        stated = content.model["network"]
        shape = description.input_shape(trained, task_of(trained), said)
        if (stated.get("input_shape"), stated.get("outputs")) != (shape, len(said["outputs"])):
            raise ValueError(f"found input {stated.get('input_shape')} for options that say {shape}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, error) from None
    more = task_of(trained).network_options(said, str(path))
    load = partial(_load, path, trained, shape, len(said["outputs"]), weights, stated.get("options"), more)
    return Opened(trained=trained, content=unpacked, weights=weights, load=load)


def _named(content: Content) -> dict[str, Any]:
    """Path -> array. ValueError if model.json lists others."""
    listed = content.model["network"]["weights"]
    found = [list(array.shape) for array in content.weights]
    if [shape for _, shape in listed] != found or len({str(path) for path, _ in listed}) < len(listed):
        raise ValueError("found other weights than model.json lists")
    return {str(path): array for (path, _), array in zip(listed, content.weights, strict=True)}


def _load(
    path: Path, trained: TrainConfig, shape: list[int], outputs: int, weights: dict[str, Any], stated_options: Any,
    more: Mapping[str, Any], precision: str | None = None,
) -> Any:  # fmt: skip
    """The network. InputError if the weights do not belong to its name; DoesNotFit if they alone need too much memory."""
    import tensorflow as tf

    try:
        options = network.build_options(trained.model, {name: array.shape for name, array in weights.items()})
        if options != stated_options:
            raise ValueError(f"found build options {str(stated_options)[:80]}, expected {options} by its weights")
        return network.built(trained.model, shape, outputs, weights, precision or trained.precision, **more)
    except tf.errors.ResourceExhaustedError:
        raise inference.weights_do_not_fit(path) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise _unusable(path, error) from None


def _unusable(path: Path, error: Exception) -> InputError:
    text = " ".join(str(error).split())
    return InputError(
        f"{path}: found a package that cannot be used ({text.removeprefix(f'{path}: ')}); expected what "
        "`python -m lms3d.package` writes; make it again"
    )
