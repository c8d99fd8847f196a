"""The best weights of a run come back into the model that was trained."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest

from lms3d.training.callbacks import best_weights


@pytest.fixture
def model() -> keras.Model:
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    made.compile("adam", "mse")
    return made


@pytest.fixture
def read(monkeypatch) -> list[Path]:
    """The files that Keras reads weights from."""
    files: list[Path] = []
    real = keras.Model.load_weights
    monkeypatch.setattr(keras.Model, "load_weights", lambda self, path: files.append(Path(path)) or real(self, path))
    return files


def saved(model: keras.Model, run_dir: Path) -> list[np.ndarray]:
    """Saves the weights, and puts others in their place."""
    best_weights.without_training(model).save(best_weights.path_in(run_dir))
    found = model.get_weights()
    model.set_weights([weight + 1 for weight in found])
    return found


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_they_are_read_from_a_file_of_their_own_which_does_not_stay(model, read, tmp_path):
    best = saved(model, tmp_path)
    best_weights.put_back(tmp_path, model)
    assert_same(model.get_weights(), best)
    (file,) = read
    assert file.name == "model.weights.h5"
    assert not file.parent.exists()


def test_without_room_for_it_from_the_archive(model, read, tmp_path, monkeypatch):
    def no_room() -> None:
        raise OSError(28, "No space left on device")

    best = saved(model, tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", no_room)
    best_weights.put_back(tmp_path, model)
    assert_same(model.get_weights(), best)
    assert read == [tmp_path / "best.keras"]


def test_where_there_are_none_the_model_keeps_its_own(model, tmp_path):
    before = model.get_weights()
    best_weights.put_back(tmp_path, model)
    assert_same(model.get_weights(), before)
