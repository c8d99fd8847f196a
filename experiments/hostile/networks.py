"""Readers that need TensorFlow: .keras files, and what was measured on this machine. Each trial takes a part of a second."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from experiments.hostile.readers import Reader
from lms3d.engine.tensorflow import op_costs, speeds
from lms3d.engine.tensorflow.probing import Cost
from lms3d.keras_step import saved_model
from lms3d.tasks import inference

CONFIG = "config.json"


def _model(folder: Path) -> None:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4, 4, 4, 2))
    x = keras.layers.Conv3D(2, 3, padding="same", name="a")(inputs)
    x = keras.layers.LeakyReLU(name="b")(keras.layers.GlobalAveragePooling3D()(x))
    model = keras.Model(inputs, keras.layers.Dense(1, name="c")(x))
    model.compile("sgd", "mse")
    model.save(folder / "best.keras")


def _config(folder: Path) -> None:
    """Its config.json alone, to be damaged; reading puts it into the file."""
    _model(folder)
    with zipfile.ZipFile(folder / "best.keras") as archive:
        (folder / CONFIG).write_bytes(archive.read(CONFIG))


def _with_config(folder: Path) -> None:
    path = folder / "best.keras"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {CONFIG: (folder / CONFIG).read_bytes()}).items():
            archive.writestr(name, content)


def _read_model(folder: Path) -> Any:
    model = inference.load_model(folder / "best.keras")
    return [np.asarray(weight).tolist() for weight in model.weights], model.input_shape


def _read_any_model(folder: Path) -> Any:
    return [np.asarray(weight).tolist() for weight in saved_model.load(folder / "best.keras").weights]


def _read_config(folder: Path) -> Any:
    _with_config(folder)
    return _read_model(folder)


def _speeds(folder: Path) -> None:
    entry = dict.fromkeys(speeds.SPEEDS, 2.0)
    speeds.write_store(folder / "machine.json", {"here": entry})
    op_costs._save(folder / "ops.json", "here", {"Conv3D": Cost(1.0, 0.5, 7), "Odd": None})


def _read_speeds(folder: Path) -> Any:
    stored = speeds._stored(speeds.read_store(folder / "machine.json"), "here")
    return stored, op_costs._load(folder / "ops.json")


NETWORKS: dict[str, Reader] = {
    "network (.keras)": Reader(make=_model, read=_read_model, sealed=True),
    "network (its config)": Reader(make=_config, read=_read_config, damaged=CONFIG),
    "network of anyone (.keras)": Reader(make=_model, read=_read_any_model, sealed=True),
    "measured speeds": Reader(make=_speeds, read=_read_speeds),
}
