"""lms3d beside the user's other work: files and packages of the same names, settings of Keras, any order of imports."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import keras
import numpy as np
import pytest

import lms3d
from lms3d import after_keras, own_packages
from lms3d.errors import InputError
from lms3d.keras_step import attachment, estimate
from lms3d.models.layers import InstanceNormalization
from lms3d.units import parse_size

ROOT = Path(__file__).parents[2]


def python(*arguments: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"} | settings
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("file", ["data.py", "models.py", "models/__init__.py"])
def test_a_file_that_hides_a_package_of_lms3d_is_named(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    done = python("-m", "lms3d.train", "--help", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    for words in (f"{tmp_path / file}: found this in the place of", "expected no other", "rename it"):
        assert words in done.stderr


def test_a_folder_of_data_hides_nothing(tmp_path):
    """Python prefers a package anywhere to a folder without `__init__.py`."""
    (tmp_path / "data").mkdir()
    assert python("-m", "lms3d.train", "--help", cwd=tmp_path).returncode == 0
    assert [own_packages.hidden_by(name) for name in own_packages.NAMES] == [None, None]


@pytest.mark.parametrize(
    ("words", "arguments", "is_ours"),
    [
        (["-m", "lms3d.train"], ["--epochs", "3"], True),
        (["-X", "importtime", "-mlms3d.predict"], ["-m"], True),
        (["-m", "lms3d"], [], True),
        (["-m", "mypkg.train"], ["lms3d.train"], False),
        (["-m", "lms3d_more.train"], [], False),
    ],
)
def test_commands_are_told_from_other_programs_that_python_runs(words, arguments, is_ours):
    """While Python looks for a module, `sys.argv` has "-m" in its place."""
    everything = ["python", *words, *arguments]
    assert own_packages.runs_a_command(["-m", *arguments], everything) == is_ours
    assert not own_packages.runs_a_command(["train.py", *arguments], everything)


def test_another_program_may_have_a_data_of_its_own(tmp_path):
    """`python -m` of a stranger's module that imports lms3d."""
    for name in ("data.py", "mine/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "mine/__init__.py").write_text("import lms3d")
    (tmp_path / "mine/train.py").write_text("import data; print(data.__file__)")
    done = python("-m", "mine.train", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'data.py'}\n"), done.stderr


def test_what_hides_a_package_is_known_by_its_folder(monkeypatch, tmp_path):
    specs = {name: ModuleSpec(name, None, origin=str(where / "__init__.pyc"), is_package=True)
             for name, where in {"models": ROOT / "models", "data": tmp_path / "data"}.items()}  # fmt: skip
    for spec in specs.values():
        spec.submodule_search_locations = [str(Path(spec.origin).parent)]
    monkeypatch.setattr(own_packages, "find_spec", specs.get)
    assert own_packages.hidden_by("models") is None  # an installation without sources
    assert own_packages.hidden_by("data") == (tmp_path / "data/__init__.pyc").resolve()


def test_a_module_that_a_program_has_made_hides_a_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "models", types.ModuleType("models"))
    assert own_packages.hidden_by("models") == Path("models")


def test_a_library_does_not_care(tmp_path):
    (tmp_path / "models.py").write_text("mine = 1")
    code = "import models, lms3d; assert models.mine; import keras; lms3d.LMS()"
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", ["keras, lms3d", "lms3d, tensorflow, keras"])
def test_to_import_lms3d_is_enough_to_load_its_layers(tmp_path, order):
    image = keras.Input((8, 8, 1))
    model = keras.Model(image, InstanceNormalization()(keras.layers.Conv2D(2, 3)(image)))
    model.save(tmp_path / "best.keras")
    done = python("-c", f"import {order}; print(keras.models.load_model('best.keras').count_params())", cwd=tmp_path)
    assert done.stdout == f"{model.count_params()}\n", done.stderr


def test_libraries_that_another_finder_finds_are_waited_for(tmp_path, monkeypatch):
    """Editable installs and import hooks have finders of their own, whose loader may serve several modules."""
    registered: list[str] = []
    executed: list[str] = []
    loader = types.SimpleNamespace(
        create_module=lambda spec: None, exec_module=lambda module: executed.append(module.__name__)
    )
    other = types.SimpleNamespace(
        find_spec=lambda name, *_: ModuleSpec(name, loader) if name in after_keras.LIBRARIES else None
    )
    monkeypatch.setattr(after_keras, "_import_holders", lambda: registered.append("once"))
    waiting = after_keras._Waiting()
    monkeypatch.setattr(sys, "meta_path", [waiting, other, *sys.meta_path])
    for name in after_keras.LIBRARIES:
        monkeypatch.delitem(sys.modules, name)
    for name in after_keras.LIBRARIES:
        module = importlib.import_module(name)
        assert module.__spec__.loader is module.__loader__ is loader
    assert (executed, registered) == (list(after_keras.LIBRARIES), ["once"])
    assert waiting not in sys.meta_path


def test_commands_run_under_any_settings_of_keras(tmp_path):
    settings = {"floatx": "float16", "epsilon": 1e-2, "backend": "jax", "image_data_format": "channels_first"}
    (tmp_path / "keras.json").write_text(json.dumps(settings))
    code = (
        "from lms3d.device.startup import start_tensorflow; start_tensorflow(); import keras; c = keras.config; "
        "print(c.backend(), c.image_data_format(), c.floatx(), c.epsilon(), c.dtype_policy().name)"
    )
    done = python("-c", code, cwd=tmp_path, KERAS_HOME=str(tmp_path))
    assert done.stdout == "tensorflow channels_last float32 1e-07 float32\n", done.stderr


@pytest.mark.parametrize(("compiled_by_xla", "warnings"), [(True, 1), (False, 0)])
def test_that_xla_is_dropped_is_said(caplog, compiled_by_xla, warnings):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=compiled_by_xla)
    callback = lms3d.LMS()
    callback.set_model(model)
    with caplog.at_level(logging.WARNING, "lms3d"):
        for _ in range(2):  # once for each compilation
            callback.on_train_begin()
            callback.on_train_end()
    assert caplog.text.count("jit_compile=False") == warnings
    assert attachment.attached(model, "train") is None


def estimated(**arguments: object) -> object:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return lms3d.estimate(model, keras.ops.zeros((1, 2)), **arguments)


@pytest.mark.parametrize("call", [lms3d.LMS, estimated])
def test_a_misspelt_argument_is_told_with_the_one_that_was_meant(call):
    with pytest.raises(TypeError, match="found no argument 'memory_limt'; did you mean memory_limit"):
        call(memory_limt="6GiB")


def test_a_batch_without_targets_is_told():
    with pytest.raises(
        InputError, match=r"found a batch of x alone, which the train step does not take .*expected \(x, y\)"
    ):
        estimated()


def test_shapes_are_no_batch():
    with pytest.raises(InputError, match=r"input_spec: found numbers \(\(2, 3\)\); expected .*tf.TensorSpec"):
        estimate.batch_spec((2, 3))


def test_completion_knows_the_arguments_of_estimate():
    assert "memory_limit" in inspect.signature(lms3d.estimate).parameters
    assert lms3d.estimate.__name__ == "estimate"


@pytest.mark.parametrize("size", [6.0e9, np.int64(6_000_000_000), "6GB"])
def test_sizes_are_numbers_of_any_kind(size):
    assert parse_size(size) == 6_000_000_000


@pytest.mark.parametrize("size", [0.5, float("nan"), [3], None])
def test_what_is_no_size_is_told(size):
    with pytest.raises(InputError, match="is not a size"):
        parse_size(size)
