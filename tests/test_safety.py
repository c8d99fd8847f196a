"""Nothing here runs what a file says: no pickles, no evaluated text, Keras's safe mode."""

from __future__ import annotations

import ast
import json
import re
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from lms3d.errors import InputError
from lms3d.keras_step import saved_model
from lms3d.tasks import inference

ROOT = Path(__file__).parent.parent
UNPICKLING = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "jsonpickle", "joblib.load"}
WORDS = r"pickle|dill|marshal|shelve|yaml|\beval\(|\bexec\(|compile\(|\bload\(|safe_mode"


def sources() -> list[tuple[str, ast.Module]]:
    """Modules with a word in them that could matter."""
    paths = [
        path
        for room in ("lms3d", "models", "data", "experiments", "docs", "deploy")
        for path in sorted((ROOT / room).rglob("*.py"))
    ]
    texts = {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text() for path in paths}
    assert len(texts) > 300
    return [(name, ast.parse(text)) for name, text in texts.items() if re.search(WORDS, text)]


def unsafe(tree: ast.Module) -> list[str]:
    """Imports and calls that could run what a file says."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in UNPICKLING]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            found += [called] if called in {"eval", "exec", "compile", "joblib.load", "torch.load"} else []
            found += [f"{called}({one.arg}=...)" for one in node.keywords
                      if one.arg == "safe_mode" or (one.arg == "allow_pickle" and ast.unparse(one.value) != "False")]  # fmt: skip
            if called in ("np.load", "numpy.load") and not any(one.arg == "allow_pickle" for one in node.keywords):
                found.append(f"{called} without allow_pickle=False")
    return found


def test_no_pickles_and_no_evaluated_text():
    assert {name: found for name, tree in sources() if (found := unsafe(tree))} == {}


def test_what_is_unsafe_is_found():
    for code in ("import pickle", "from cloudpickle import loads", "np.load(f)", "np.load(f, allow_pickle=True)", "eval(x)",
                 "import yaml", "keras.models.load_model(p, safe_mode=False)"):  # fmt: skip
        assert re.search(WORDS, code)
        assert unsafe(ast.parse(code)), code


SHELLS = ("*.sh", "*.sbatch", "*.y*ml", "Dockerfile*")
EVALUATING = re.compile(
    r"\beval\b|\|\s*(sudo\s+)?(ba|z|da)?sh\b|\b(ba|z|da)?sh -c [\"']?\$|(\.|\bsource)\s+<\(|(\.|\bsource) /tmp"
)


def test_no_script_evaluates_text_or_runs_what_it_downloads():
    paths = [path for kind in SHELLS for path in sorted((ROOT / "deploy").rglob(kind))]
    assert len(paths) > 12
    assert [path.name for path in paths if EVALUATING.search(_without_comments(path.read_text()))] == []
    for code in ("eval $X", "curl u | sh", "wget -O- u | sudo bash", 'bash -c "$LINE"', ". <(curl u)", ". /tmp/job.sh"):
        assert EVALUATING.search(code), code


def _without_comments(text: str) -> str:
    return re.sub(r"(?m)(^|\s)#.*", "", text)


def attack(path: Path, change) -> Path:
    """A small network, saved, whose config has been changed."""
    inputs = keras.Input((4, 4, 4, 1))
    model = keras.Model(inputs, keras.layers.Activation("relu", name="a")(keras.layers.Conv3D(1, 1)(inputs)))
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    layer = next(one for one in config["config"]["layers"] if one["name"] == "a")
    change(config, layer)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"config.json": json.dumps(config).encode()}).items():
            archive.writestr(name, content)
    return path


def function(module: str, name: str) -> dict:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def call(mark: Path) -> dict:
    return {"module": "pathlib", "class_name": "Path", "config": {"args": [str(mark)]}, "registered_name": None}


ATTACKS = {
    "a lambda layer": lambda config, layer, mark: layer.update(
        module="keras.layers", class_name="Lambda",
        config={"name": "a", "function": {"class_name": "__lambda__", "config": {
            "code": "4wEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==", "defaults": None, "closure": None}}},
    ),
    "a foreign class": lambda config, layer, mark: layer.update(
        module="subprocess", class_name="Popen", config={"args": ["touch", str(mark)]}, registered_name=None),
    "a foreign class as the model": lambda config, layer, mark: config.update(
        module="subprocess", class_name="Popen", config={"args": ["touch", str(mark)]}, registered_name=None),
    "a foreign function": lambda config, layer, mark: layer["config"].update(activation=function("os", "system")),
    "a builtin": lambda config, layer, mark: layer["config"].update(activation=function("builtins", "exec")),
    "a path": lambda config, layer, mark: layer["config"].update(activation=call(mark)),
    "the name of Keras's own loader": lambda config, layer, mark: layer["config"].update(
        activation=function("keras.saving", "load_model")),
    "a lambda as an activation": lambda config, layer, mark: layer["config"].update(
        activation={"class_name": "__lambda__", "config": {"value": "gASVAAAAAAAAAA=="}}),
    "a download": lambda config, layer, mark: layer["config"].update(activation=function("keras.utils", "get_file")),
}  # fmt: skip


@pytest.mark.parametrize("load", [inference.load_model, saved_model.load])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_crafted_network_runs_nothing(tmp_path, name, load):
    mark = tmp_path / "mark"
    path = attack(tmp_path / "best.keras", lambda config, layer: ATTACKS[name](config, layer, mark))
    with pytest.raises(InputError) as error:
        load(path)
    assert "\n" not in str(error.value).strip()
    assert len(str(error.value)) < 1500
    assert not mark.exists()


def test_a_sound_one_is_loaded(tmp_path):
    assert inference.load_model(attack(tmp_path / "best.keras", lambda config, layer: None)).count_params() == 2


@pytest.mark.parametrize("load", [inference.load_model, saved_model.load])
def test_a_flipped_bit_in_the_weights_is_no_other_network(tmp_path, load):
    """Keras reads them by parts of the file, and does not notice."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(300, kernel_initializer=keras.initializers.Constant(1 / 3))(inputs))
    model.compile("sgd", "mse")
    model.save(tmp_path / "best.keras")
    sound = (tmp_path / "best.keras").read_bytes()
    at = sound.index(np.float32(1 / 3).tobytes() * 100)
    (tmp_path / "best.keras").write_bytes(sound[: at + 43] + bytes([sound[at + 43] ^ 64]) + sound[at + 44 :])
    with pytest.raises(InputError, match=r"best.keras: .*the checksum of model.weights.h5 in it is wrong"):
        load(tmp_path / "best.keras")
