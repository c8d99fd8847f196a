"""Run folders, predictions and caches that somebody has changed. The kinds of damage that once ended in a traceback, or worse."""

import gzip
import json
import struct
import tracemalloc
import zipfile
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from lms3d import errors, tasks
from lms3d.common import json_values
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.errors import DataError
from lms3d.engine.tensorflow import op_costs, speeds
from lms3d.engine.tensorflow.probing import Cost
from lms3d.errors import InputError
from lms3d.tasks import chosen
from lms3d.tasks.brats import label_maps, plain_maps, predict
from lms3d.tasks.brats.label_maps import Predictions
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.chexnet import predict as findings
from lms3d.tasks.packages.description import best_epoch
from lms3d.tasks.task import TrainedRun
from lms3d.training import checkpoint, run_folder, run_state
from lms3d.training.run_state import RunState


def test_a_message_of_any_length_is_a_line_that_can_be_read(capsys):
    errors.say("a\n" + "x" * 10**6 + "; do this")
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert len(told) < errors.LONGEST
    assert told.endswith("; do this\n")


@dataclass
class Kinds:
    a: int = 0
    b: tuple[int, int] | None = None
    c: tuple[int | str, ...] = ()
    d: float = 0.0
    e: bool = True
    f: Path | None = None


@pytest.mark.parametrize(
    "right",
    [{"a": 3}, {"b": None}, {"b": (1, 2)}, {"c": (1, "x")}, {"c": ()}, {"d": 1}, {"e": False}, {"f": Path()}, {}],
)
def test_values_of_the_annotated_types(right):
    json_values.require_types(right, Kinds)


@pytest.mark.parametrize("wrong", [{"a": True}, {"a": "3"}, {"a": 1.0}, {"b": (1,)}, {"b": (1, "2")}, {"c": (None,)}, {"c": 7},
                                   {"d": True},
                                   {"d": "1"}, {"e": 1}, {"e": None}, {"f": "x"}])  # fmt: skip
def test_values_of_other_types(wrong):
    with pytest.raises(ValueError, match=f"found {next(iter(wrong))} "):
        json_values.require_types(wrong, Kinds)


OPTIONS = chosen({}).to_json()


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        "null",
        "[]",
        '{"options": 7}',
        '{"options": {"stages": [7]}}',
        '{"options": {"resolution": "128"}}',
        '{"options": {"box": [1, 2]}}',
        '{"options": {"resolution": -16}}',
        '{"options": {"patch": 1000000}}',
        '{"options": {"data": 3}}',
    ],
)
def test_options_that_no_run_has(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config.json is damaged .*restore it or start another run"):
        tasks.load(tmp_path)


@pytest.mark.parametrize(
    "name", ["versions", "command", "circumstances", "data", "normalisation", "labels", "earlier_sessions"]
)
@pytest.mark.parametrize("value", [None, 7, "x", True])
def test_what_stands_beside_the_options(tmp_path, name, value):
    (tmp_path / "config.json").write_text(json.dumps({"options": OPTIONS, name: value}))
    with pytest.raises(InputError, match=rf"config.json is damaged \(found {name} .*restore it or start another run"):
        tasks.load(tmp_path)


@pytest.mark.parametrize("data", [{}, {"data": {}}, {"data": {"fingerprint": 7}}])
def test_a_run_that_does_not_know_its_data(tmp_path, data):
    (tmp_path / "config.json").write_text(json.dumps({"options": OPTIONS} | data))
    with pytest.raises(InputError, match=r"config.json is damaged .*restore it or start another run"):
        run_folder.check_data(tmp_path, "0")


@pytest.mark.parametrize("value", [{}, {"mean": 7}, {"mean": [0] * 4, "std": [1, 1, 1, 0]}, {"mean": [0], "std": [1]},
                                   {"mean": [float("nan")] * 4, "std": [1] * 4}, {"mean": [10**400], "std": [1]}])  # fmt: skip
def test_a_normalisation_that_no_run_has(tmp_path, value):
    (tmp_path / "config.json").write_text(json.dumps({"options": OPTIONS, "normalisation": value}))
    trained, content = tasks.load(tmp_path)
    run = TrainedRun(run_dir=tmp_path, trained=trained, content=content, network=None)
    with pytest.raises(InputError, match=r"config.json: found no normalisation"):
        predict._normalisation(run)


def test_options_of_every_run(tmp_path):
    given = {
        "box": (32, 48, 32),
        "stages": ((16, 2),),
        "serialization": (3, "5:8"),
        "data": Path("/x"),
        "memory_limit": 1 << 40,
    }
    options = chosen(given)
    assert BratsConfig.from_json(json.loads(json.dumps(options.to_json()))) == options


STATE = RunState(size=1, steps_per_epoch=4, samples_per_step=1, rows=({"loss": 0.5},)).to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"position": None},
        {"position": ["a", 1]},
        {"rows": [7]},
        {"rows": [{"loss": "x"}]},
        {"size": 0},
        {"callbacks": 7},
        {"callbacks": {"early_stopping": 3}},
        {"steps_per_epoch": "4"},
        {"samples_per_step": 0},
        {"best": None},
        {"slabs": []},
    ],
)
def test_the_state_of_another_version(tmp_path, change):
    checkpoint.save(checkpoint.path_in(tmp_path), {"a": np.ones(2)}, STATE)
    assert run_state.read(tmp_path)
    checkpoint.save(checkpoint.path_in(tmp_path), {"a": np.ones(2)}, STATE | change)
    with pytest.raises(InputError, match="holds a state that this version of lms3d cannot use"):
        run_state.read(tmp_path)


def test_a_checkpoint_that_would_unfold_to_gigabytes(tmp_path):
    """One without a digest, as of an earlier version."""
    path = checkpoint.path_in(tmp_path)
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (200_000_000,)})
        for _ in range(200):
            member.write(bytes(1_000_000))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"parts claim 200,000,1\d\d bytes"):
        run_state.read(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


def bomb(path: Path) -> Path:
    """A label map of 400^3 zeros in some kilobytes, twice as much as its header tells."""
    header = bytearray(nib.Nifti1Image(np.zeros((2, 2, 2), np.uint8), np.eye(4)).to_bytes()[:352])
    struct.pack_into("<4h", header, 40, 3, 400, 400, 400)
    with gzip.open(path, "wb", compresslevel=9) as stream:
        stream.write(header)
        for _ in range(128):
            stream.write(bytes(1_000_000))
    return path


@pytest.mark.parametrize("dims", [(3, 32767, 32767, 32767), (3, 1200, 1200, 1200), (3, -2, 2, 2)])
def test_label_maps_that_claim_more_than_they_have(tmp_path, dims):
    image = bytearray(nib.Nifti1Image(np.zeros((2, 2, 2), np.uint8), np.eye(4)).to_bytes())
    struct.pack_into("<4h", image, 40, *dims)
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(bytes(image)))
    for read in (label_maps.read_labels, plain, plain_maps.affine_of):
        tracemalloc.start()
        with pytest.raises((InputError, DataError), match=r"a.nii.gz: found"):
            read(tmp_path / "a.nii.gz")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30e6


def plain(path: Path) -> np.ndarray:
    return plain_maps.read(path, SCHEMAS["brats2020"], (2, 2, 2), np.eye(4), like="the truth")


def test_a_label_map_that_goes_on_and_on(tmp_path):
    for read in (label_maps.read_labels, plain):
        with pytest.raises((InputError, DataError), match="goes on after"):
            read(bomb(tmp_path / "a.nii.gz"))


@pytest.mark.parametrize("wrong", [0.5, -1.0, 256.0, 260.0])
def test_values_that_are_no_labels(tmp_path, wrong):
    path = tmp_path / "a.nii.gz"
    values = np.array([0.99999994, 1.0000001, 4.0, 0.0], np.float32).reshape(4, 1, 1)
    nib.save(nib.Nifti1Image(values, np.eye(4)), path)
    assert label_maps.read_labels(path)[0].ravel().tolist() == [1, 1, 4, 0]
    nib.save(nib.Nifti1Image(np.append(values, wrong).astype(np.float32).reshape(5, 1, 1), np.eye(4)), path)
    with pytest.raises(InputError, match=r"a.nii.gz: found values that are no whole numbers"):
        label_maps.read_labels(path)


GEOMETRY = {"shape": [4, 4, 4], "affine": np.eye(4).tolist(), "box": [[0, 0, 0], [2, 2, 2]]}


@pytest.mark.parametrize(
    "change",
    [
        {"cases": {"../../etc/x": GEOMETRY}},
        {"cases": {"a": {}}},
        {"cases": []},
        {"shape": [16, 16]},
        {"shape": "abc"},
        {"model": None},
        {"stretched": "yes"},
        {"more": 1},
        {"tta": 7},
    ],
)
def test_predictions_that_predict_has_not_written(tmp_path, change):
    Predictions(
        directory=tmp_path, label="run", run="r", model="unet3d", shape=(16, 16, 16), stretched=True, tta=None, data="x",
        fingerprint="0", schema="brats2020", cases={"a": GEOMETRY},
    ).save()  # fmt: skip
    path = tmp_path / "predictions.json"
    assert label_maps.load(tmp_path).cases
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=r"predictions.json: found a file that cannot be used .*predict again"):
        label_maps.load(tmp_path)


@pytest.mark.parametrize("text", ["null", "[]", "{}", "[" * 100_000])
def test_predictions_of_another_kind(tmp_path, text):
    (tmp_path / "predictions.json").write_text(text)
    with pytest.raises(InputError, match=r"predictions.json: found a file that cannot be used"):
        label_maps.load(tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "1.5", "x"])
def test_probabilities_that_are_none(tmp_path, value):
    path = tmp_path / findings.FILE
    findings.write(iter([findings.Image(name="a.png", patient="7", findings=None, probabilities=(0.25,) * 14)]), path)
    assert findings.read(path)
    path.write_text(path.read_text().replace("0.250000", value, 1))
    with pytest.raises(InputError, match="line 2: found"):
        findings.read(path)


def test_a_history_with_a_cell_without_end(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,val_loss\n1," + "1" * 200_000 + "\n")
    with pytest.raises(InputError, match=r"history.csv: found a table that cannot be used"):
        best_epoch(tmp_path / "history.csv")


@pytest.mark.parametrize(
    "cost", ["[1, 0.5, 1e999]", "[NaN, 0.5, 1]", "[-1, 0.5, 1]", "[1, 2, 1]", "[1, 0.5, -1]", "[1]", '"abc"']
)
def test_costs_that_no_op_has(tmp_path, cost):
    store = tmp_path / "ops.json"
    op_costs._save(store, "here", {"a": Cost(1.0, 0.5, 1)})
    assert op_costs._load(store)
    store.write_text(f'{{"here": {{"a": {cost}}}}}')
    assert op_costs._load(store) == {}


def test_a_store_of_brackets(tmp_path):
    (tmp_path / "machine.json").write_text("[" * 100_000)
    assert speeds.read_store(tmp_path / "machine.json") == {}
