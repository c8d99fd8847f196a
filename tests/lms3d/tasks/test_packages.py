"""Every way in which a package can be wrong is one line and exit code 2, before any data is read."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from lms3d import models, predict
from lms3d.data.brats.definition import described, restored
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.errors import DataError
from lms3d.device import startup
from lms3d.errors import InputError
from lms3d.tasks import TASKS, chosen
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.packages import archive, description, network, package
from lms3d.tasks.packages.archive import Content
from lms3d.tasks.task import Task


@pytest.fixture(scope="module")
def content():
    """A package's content, made without a run."""
    model = models.build("unet3d", input_shape=(16, 16, 16, 4), filters=(2, 4))
    weights = network.weights_of(model)
    options = BratsConfig(model="unet3d", resolution=16)
    said = TASKS["brats"].packaged(
        Path("nowhere"), options, {"labels": described(SCHEMAS["msd"]), "normalisation": {"kind": "case"}}
    )
    built = network.build_options("unet3d", {path: array.shape for path, array in weights.items()})
    told = description.describe(Path("nowhere"), options, {}, said, weights, built)
    return Content(model=told, weights=list(weights.values()))


@pytest.fixture
def file(content, tmp_path):
    archive.write(content, tmp_path / "a.lms3d")
    return tmp_path / "a.lms3d"


@pytest.fixture
def refused(tmp_path, capsys, monkeypatch):
    """refused(path): what the command says in one line."""
    monkeypatch.setattr(startup, "start_tensorflow", lambda **_: None)
    (tmp_path / "data").mkdir()

    def run(path):
        assert predict.main([str(path), "--data", str(tmp_path / "data"), "--output", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "a.lms3d" in error
        return error

    return run


def members(path):
    with zipfile.ZipFile(path) as opened:
        return {info.filename: opened.read(info) for info in opened.infolist()}


def rewrite(path, found, *, digests=True, compression=zipfile.ZIP_STORED):
    """The members as a file, with right digests unless these are left alone."""
    found = dict(found)
    if digests:
        sums = found.pop("SHA256SUMS", b"")
        sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in found.items()).encode()
        found["SHA256SUMS"] = sums
    with zipfile.ZipFile(path, "w", compression) as opened:
        for name, data in found.items():
            opened.writestr(name, data)


def with_model(path, change):
    """Changes model.json, and its digest with it."""
    found = members(path)
    model = json.loads(found["model.json"])
    change(model)
    found["model.json"] = json.dumps(model).encode()
    rewrite(path, found)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def claiming(shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


def test_it_is_read_as_it_was_written(file, content):
    again = archive.read(file)
    assert again.model == content.model
    for one, other in zip(again.weights, content.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    opened = package.open_package(file)
    assert (opened.trained.lms, opened.trained.memory_limit, opened.trained.data) == (True, None, None)
    built = network.weights_of(opened.load())
    assert all((built[path] == array).all() for (path, _), array in zip(
        content.model["network"]["weights"], content.weights, strict=True
    ))  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 100, 5000, -1, -30, -2000])
def test_a_truncated_file(file, refused, size):
    file.write_bytes(file.read_bytes()[:size])
    assert "found a file that is no package, or only a part of one" in refused(file)


def test_every_byte_counts(file):
    """A flipped bit anywhere is found, or stands where zip keeps what nobody reads (times, attributes, ...)."""
    whole, before = file.read_bytes(), archive.read(file)
    random = np.random.default_rng(0)
    for place in random.integers(0, len(whole), 200).tolist():
        file.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << (place % 8))]) + whole[place + 1 :])
        with suppress(InputError):
            again = archive.read(file)
            assert again.model == before.model
            assert all((a == b).all() for a, b in zip(again.weights, before.weights, strict=True))


def test_foreign_files(file, refused):
    file.write_text("weights")
    assert "no package" in refused(file)
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("config.json", "{}")
    assert "found a zip archive with no model.json" in refused(file)
    rewrite(file, {"model.json": b'{"format": "other"}'})
    assert "model.json of another format" in refused(file)
    rewrite(file, {"model.json": b"[" * 100_000})
    refused(file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.update(format_version=2), "found a package of format 2; expected 1 at most: a newer lms3d can read it"),
        (lambda m: m.update(format_version="1"), "found format_version '1'"),
        (lambda m: m.update(task="cats"), "task 'cats': expected one of brats, chexnet"),
        (lambda m: m.update(task=["brats"]), "found task"),
        (lambda m: m.pop("options"), "found options"),
        (lambda m: m["options"].update(model="vnet"), "found option model 'vnet'"),
        (lambda m: m["options"].update(model="densenet121"), "found option model"),
        (lambda m: m["options"].update(resolution=1 << 40), "found option resolution"),
        (lambda m: m["options"].update(resolution=True), "found option resolution"),
        (lambda m: m["options"].update(resolution=32), "found input [16, 16, 16, 4] for options that say [32, 32, 32, 4]"),
        (lambda m: m["options"].update(box=[16, 16]), "found option box"),
        (lambda m: m["options"].update(patch="16"), "found option patch"),
        (lambda m: m["options"].update(precision="float64"), "found option precision"),
        (lambda m: m["options"].update(targets=["labels"]), "found option targets"),
        (lambda m: m["options"].update(data="/etc"), "found options"),
        (lambda m: m["options"].update(normalisation="global"), "found figures of --normalisation case"),
        (lambda m: m["meaning"].pop("labels"), "labels"),
        (lambda m: m["meaning"]["labels"]["labels"].update(ET=300), "found label ET = 300"),
        (lambda m: m["meaning"]["labels"]["labels"].update(ET=5), "found other labels called msd than this lms3d has"),
        (lambda m: m["meaning"]["outputs"].reverse(), "found outputs"),
        (lambda m: m["meaning"].update(channels=["t1"]), "found channels"),
        (lambda m: m["meaning"].update(normalisation={"kind": "global", "mean": [0], "std": [0]}), "found normalisation"),
        (lambda m: m["meaning"].update(normalisation=7), "found normalisation 7"),
        (lambda m: m.update(meaning=[]), "found no description"),
        (lambda m: m.pop("network"), "network"),
        (lambda m: m["network"].update(weights=[[["a"], 1]]), "found other weights than model.json lists"),
        (lambda m: m["network"]["weights"].pop(), "found other weights than model.json lists"),
        (lambda m: m["network"].update(outputs=4), "found input"),
    ],
)  # fmt: skip
def test_a_description_that_cannot_be_used(file, refused, change, says):
    with_model(file, change)
    assert says in refused(file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["network"]["weights"][0].__setitem__(0, "../x"), "found build options"),
        (lambda m: m["network"]["weights"][1].__setitem__(0, "../x"), "weight 'encoder0_a_conv/bias' of unet3d: found nothing"),
        (lambda m: m["network"].update(options={"filters": [4096] * 8}), "found build options {'filters': [4096"),
    ],
)  # fmt: skip
def test_a_network_that_cannot_be_built(file, change, says):
    with_model(file, change)
    opened = package.open_package(file)
    with pytest.raises(ValueError, match="found a package that cannot be used") as error:
        opened.load()
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.update({"../../evil.npy": b"x"}), "found member '../../evil.npy'"),
        (lambda f: f.update({"/etc/evil": b"x"}), "found member '/etc/evil'"),
        (lambda f: f.update({"run.py": b"x"}), "found member 'run.py'"),
        (lambda f: f.pop("weights/0001.npy"), "found member 'weights/0002.npy'"),
        (lambda f: f.update({"weights/0001.npy": npy(np.array([Evil()], object))}), "expected floating-point numbers"),
        (lambda f: f.update({"weights/0001.npy": pickle.dumps(Evil())}), "no package"),
        (lambda f: f.update({"weights/0001.npy": npy(np.zeros(3, np.float32))}), "found other weights than"),
        (lambda f: f.update({"weights/0001.npy": npy(np.zeros(2, np.int32))}), "expected floating-point numbers"),
        (lambda f: f.update({"weights/0001.npy": claiming((1 << 50,))}), "expected floating-point numbers that fill it"),
    ],
)  # fmt: skip
def test_members_that_nobody_packs(file, refused, change, says):
    found = members(file)
    change(found)
    rewrite(file, found)
    assert says in refused(file)


def test_digests(file, refused):
    found = members(file)
    changed = bytearray(found["weights/0000.npy"])
    changed[-1] ^= 1
    rewrite(file, found | {"weights/0000.npy": bytes(changed)}, digests=False)
    assert "found member 'weights/0000.npy' with another SHA-256 than SHA256SUMS says" in refused(file)
    rewrite(file, found | {"model.json": found["model.json"] + b" "}, digests=False)
    assert "found member 'model.json' with another SHA-256" in refused(file)
    rewrite(file, {name: data for name, data in found.items() if name != "SHA256SUMS"}, digests=False)
    assert "found no SHA256SUMS at the end" in refused(file)
    rewrite(file, found | {"SHA256SUMS": found["SHA256SUMS"] + b"0  more\n"}, digests=False)
    assert "digests in SHA256SUMS; expected" in refused(file)


def test_sizes_that_are_only_claimed(file, refused):
    found = members(file)
    rewrite(file, found, compression=zipfile.ZIP_DEFLATED)
    assert "compressed or encrypted; expected it stored as it is" in refused(file)
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("model.json", found["model.json"])
        with pytest.warns(UserWarning, match="Duplicate name"):
            opened.writestr("model.json", found["model.json"])
    assert "found 2 members, 1 of different names" in refused(file)
    rewrite(file, found)
    whole = bytearray(file.read_bytes())
    entry = whole.rindex(b"PK\x01\x02")  # the directory's last: its sizes stand at 20 and 24
    whole[entry + 20 : entry + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    file.write_bytes(whole)
    assert "found members that claim 4" in refused(file)
    rewrite(file, {"model.json": b" " * (archive.LARGEST_TEXT_BYTES + 1)})
    assert "found a zip archive with model.json of" in refused(file)


def test_a_file_that_is_not_there(tmp_path, refused):
    assert "a.lms3d: found nothing; expected a run directory or a package" in refused(tmp_path / "a.lms3d")


def test_nothing_in_it_is_code(file, monkeypatch):
    """Plain JSON, plain arrays, digests; and pickles are never allowed."""
    allowed = []
    load = np.load
    monkeypatch.setattr(np, "load", lambda *a, **named: allowed.append(named["allow_pickle"]) or load(*a, **named))
    package.open_package(file)
    assert set(allowed) == {False}
    names = list(members(file))
    assert names == ["model.json", *(f"weights/{k:04d}.npy" for k in range(len(names) - 2)), "SHA256SUMS"]
    assert "keras" not in members(file)["model.json"].decode()


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_described_in_full(name):
    schema = SCHEMAS[name]
    value = json.loads(json.dumps(described(schema)))
    assert restored(value, where="here") == schema
    value["nested"] = value["nested"][:1]
    with pytest.raises(DataError):
        restored(value, where="here")


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [("unet3d", (32, 32, 32, 4), {}), ("unet3d", (16, 16, 16, 4), {"filters": (2, 4, 8), "normalise": False}),
     ("isensee2017", (16, 16, 16, 4), {"filters": (2, 3, 4, 5, 6)}), ("resnet50", (32, 32, 3), {})],
)  # fmt: skip
def test_build_options_follow_from_the_weights(name, shape, options):
    model = models.build(name, input_shape=shape, **options)
    weights = network.weights_of(model)
    rebuilt = network.built(name, shape, model.output_shape[-1], weights, "float32")
    network.require_same_layers(model, rebuilt)
    again = network.weights_of(rebuilt)
    assert again.keys() == weights.keys()
    assert all((again[path] == weights[path]).all() for path in weights)


def test_options_of_the_machine_stay_at_home():
    assert description.options_of(TASKS["chexnet"]) == ["model", "resolution", "precision"]
    here = {"lms", "memory_limit", "slabs", "swap_tier", "swap_dir", "data", "split", "weights", "start_from"}
    assert not here & set(description.options_of(TASKS["brats"]))
    options = chosen({"task": "chexnet", "model": "resnet50", "resolution": 64})
    told = {"task": "chexnet", "options": {"model": "resnet50", "resolution": 64, "precision": "float32"}}
    assert description.options_from(told) == options


def test_a_task_that_says_nothing_is_refused():
    for asked in (
        lambda: Task().packaged(Path("run"), BratsConfig(), {}),
        lambda: Task().unpacked({}, BratsConfig(), "a"),
    ):
        with pytest.raises(InputError, match="task brats cannot be packaged"):
            asked()
