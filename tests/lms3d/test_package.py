"""A trained run as one file: it predicts what the run predicts, on a machine that has never seen the run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile

import nibabel as nib
import numpy as np
import pytest

from lms3d import models, package, predict
from lms3d.data import split
from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.volumes import cache, normalise
from lms3d.data.volumes.planes import image_planes
from lms3d.device import startup
from lms3d.tasks.brats.material import preprocessing
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.packages import export
from lms3d.tasks.volumes import predict as volume_predict
from tests.installed import needed

RESOLUTION = 16
OWN = {
    "labels": {"core": 1, "rim": 2, "vessel": 7, "other": 9},
    "regions": {"WT": ["core", "rim"], "TC": ["core"], "ET": ["vessel"]},
}


@pytest.fixture
def make_run(tiny_brats, own_cache, tmp_path, monkeypatch):
    """Makes a run directory with random weights, as training leaves it. TensorFlow runs already in this process."""
    monkeypatch.setattr(startup, "start_tensorflow", lambda **_: None)

    def make(name="tiny", *, outputs=3, figures=None, content=None, **options):
        directory = tmp_path / "runs" / name
        directory.mkdir(parents=True)
        chosen = BratsConfig(
            resolution=RESOLUTION, lms=False, memory_limit=1, swap_dir=tmp_path / "gone",
            **{"model": "unet3d", "data": tiny_brats} | options,
        )  # fmt: skip
        described = {
            "options": chosen.to_json(),
            "normalisation": figures or {"kind": "case", "channels": []},
            "command": ["python", "-m", "lms3d.train", "--data", str(tiny_brats), f"--split={tmp_path}/split.json"],
            "versions": {"lms3d": "1", "keras": "3"},
            "data": {"fingerprint": "abc", "schema": "brats2020", "cases": 4},
        }
        (directory / "config.json").write_text(json.dumps(described | (content or {})))
        (directory / "history.csv").write_text(
            "epoch,loss,val_loss,val_dice_WT\n1,0.5,0.4,0.6\n2,0.4,0.3,0.7\n3,0.3,nan,0.1\n"
        )
        network(chosen.model, outputs, chosen.precision, chosen.deep_supervision).save(directory / "best.keras")
        return directory

    return make


@pytest.fixture
def run_dir(make_run):
    return make_run()


def network(name="unet3d", outputs=3, precision="float32", deep=False):
    """Random weights. Its answers lie on both sides of one half."""
    import keras

    keras.utils.set_random_seed(3)
    filters = (2, 4, 4) if name == "unet3d" else (2, 2, 4, 4, 4)
    keras.config.set_dtype_policy(precision)
    try:
        more = {"separate_heads": True} if deep else {}
        return models.build(name, input_shape=(RESOLUTION,) * 3 + (4,), outputs=outputs, filters=filters, **more)
    finally:
        keras.config.set_dtype_policy("float32")


def packaged(run_dir, path):
    assert package.main([str(run_dir), "--output", str(path)]) == 0
    return path


def maps(folder):
    """Bytes of all label maps."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.nii.gz"))}
    assert found
    return found


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "isensee2017", "targets": "regions", "anti_alias": False},
        {"patch": 16, "box": (32, 16, 32), "normalisation": "global"},
        {"precision": "mixed_bfloat16"},
        {"model": "isensee2017", "deep_supervision": True},
    ],
)
def test_it_predicts_the_same_bytes_as_its_run_which_is_gone(make_run, tiny_brats, tmp_path, options):
    figures = {"kind": "global", "mean": [50.0] * 4, "std": [40.0] * 4}
    run = make_run(**options, figures=figures if options.get("normalisation") else None)
    asked = ["--data", str(tiny_brats), "--memory-limit", "1GiB"]
    assert predict.main([str(run), *asked, "--output", str(tmp_path / "of_run")]) == 0
    assert package.main([str(run)]) == 0
    moved = tmp_path / "elsewhere" / "ours.lms3d"
    moved.parent.mkdir()
    (run / "tiny.lms3d").rename(moved)
    shutil.rmtree(run)
    assert predict.main([str(moved), *asked]) == 0
    written = moved.parent / "ours-predictions"
    assert maps(written) == maps(tmp_path / "of_run")
    values = {int(v) for path in written.rglob("*.nii.gz") for v in np.unique(np.asarray(nib.load(path).dataobj))}
    assert len(values) > 1
    index = json.loads((written / "predictions.json").read_text())
    assert (index["label"], index["schema"], index["model"]) == ("ours", "brats2020", options.get("model", "unet3d"))


def test_the_real_commands(run_dir, tiny_brats, tmp_path):
    """A limit of one byte, which the run was trained with, is not that of the machine that predicts."""
    python = [sys.executable, "-m"]
    done = subprocess.run([*python, "lms3d.package", str(run_dir)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    file = run_dir / "tiny.lms3d"
    for text in ("unet3d, 16x16x16x4 -> NCR, ED, ET", "brats2020: NCR 1, ED 2, ET 4", "2 of 3, val_loss 0.300", "KiB"):
        assert text in done.stdout
    assert f"python -m lms3d.predict {file} --data" in done.stdout
    command = [*python, "lms3d.predict", str(file), "--data", str(tiny_brats), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(maps(tmp_path / "out")) == 8


def test_the_same_run_gives_the_same_bytes(run_dir, tmp_path):
    one, other = packaged(run_dir, tmp_path / "a.lms3d"), packaged(run_dir, tmp_path / "b.lms3d")
    assert one.read_bytes() == other.read_bytes()
    packaged(run_dir, one)  # a package may be replaced
    assert one.read_bytes() == other.read_bytes()


def test_what_is_in_it(run_dir, tmp_path, tiny_brats):
    found = members(packaged(run_dir, tmp_path / "a.lms3d"))
    arrays = [f"weights/{number:04d}.npy" for number in range(len(network().weights))]
    assert list(found) == ["model.json", *arrays, "SHA256SUMS"]
    model = json.loads(found["model.json"])
    assert model["network"]["options"] == {"filters": [2, 4, 4], "normalise": True}
    assert model["options"]["normalisation"] == "case"
    assert model["meaning"]["labels"]["labels"] == SCHEMAS["brats2020"].labels
    assert model["provenance"]["best"] == {"epoch": 2, "epochs": 3, "val_loss": 0.3, "val_dice_WT": 0.7}
    assert model["provenance"]["command"][-2:] == [tiny_brats.name, "--split=split.json"]
    for gone in (str(tmp_path), str(tiny_brats.parent), "memory_limit", "swap"):
        assert gone not in found["model.json"].decode()


def test_it_is_averaged_with_a_run(run_dir, tiny_brats, tmp_path):
    file = packaged(run_dir, tmp_path / "a.lms3d")
    asked = ["--data", str(tiny_brats), "--memory-limit", "1GiB", "--output"]
    assert predict.main([str(run_dir), *asked, str(tmp_path / "one")]) == 0
    assert predict.main([str(file), str(run_dir), *asked, str(tmp_path / "two")]) == 0
    assert maps(tmp_path / "one").keys() == maps(tmp_path / "two").keys()
    first = "native/BraTS20_Training_001.nii.gz"
    assert maps(tmp_path / "one")[first] == maps(tmp_path / "two")[first]  # the mean of two equal ones


def test_a_schema_of_ones_own_goes_with_it(make_run, tiny_brats, tmp_path, commands):
    from lms3d.data.brats.definition import define, described

    own = define(OWN, where="here")
    run = make_run(outputs=4, content={"labels": described(own)})
    file = packaged(run, tmp_path / "own.lms3d")
    code = (
        "import sys; from lms3d import predict; from lms3d.tasks.packages import package; from pathlib import Path;"
        "from lms3d.data.brats.schema import schema_named; package.open_package(Path(sys.argv[1]));"
        f"assert schema_named({own.name!r}).labels == {dict(own.labels)!r};"
        "sys.exit(predict.main([sys.argv[1], '--data', sys.argv[2], '--output', sys.argv[3]]))"
    )
    done = commands.run(["-c", code, file, tiny_brats, tmp_path / "out"])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "out/predictions.json").read_text())["schema"] == own.name
    values = {int(v) for path in (tmp_path / "out").rglob("*.nii.gz") for v in np.unique(nib.load(path).dataobj)}
    assert values <= {0, 1, 2, 7, 9}
    assert values & {7, 9}


def test_what_labels_of_ones_own_predict_is_scored_against_the_labels_of_the_data(
    make_run, tiny_brats, tmp_path, commands
):
    """By a process that has never heard of them."""
    from lms3d.data.brats.definition import define, described

    run = make_run(outputs=4, content={"labels": described(define(OWN, where="here"))})
    assert predict.main([str(run), "--data", str(tiny_brats), "--output", str(tmp_path / "out")]) == 0
    done = commands.run(["-m", "lms3d.evaluate", tmp_path / "out"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "Rules: brats2017" in done.stdout


def test_cases_whose_names_tell_nothing_have_the_labels_that_it_learnt(make_run, tiny_brats, tmp_path, capsys):
    run, data = make_run(), tmp_path / "own"
    for number, old in enumerate(sorted(tiny_brats.iterdir())):
        (data / f"head{number}").mkdir(parents=True)
        for path in old.iterdir():
            shutil.copy(path, data / f"head{number}" / path.name.replace(old.name, f"head{number}"))
    asked = ["--data", str(data), "--memory-limit", "1GiB", "--output", str(tmp_path / "out")]
    assert predict.main([str(run), *asked]) == 2
    assert "or to be told what the labels mean" in capsys.readouterr().err
    assert predict.main([str(packaged(run, tmp_path / "a.lms3d")), *asked]) == 0
    assert json.loads((tmp_path / "out/predictions.json").read_text())["schema"] == "brats2020"


def test_networks_of_different_labels_are_not_averaged(make_run, tiny_brats, tmp_path, capsys):
    from lms3d.data.brats.definition import define, described

    own = define(OWN | {"learnt": ["core", "rim", "vessel"]}, where="here")
    files = [
        packaged(make_run("one"), tmp_path / "one.lms3d"),
        packaged(make_run("two", content={"labels": described(own)}), tmp_path / "two.lms3d"),
    ]
    asked = ["--data", str(tiny_brats), "--output", str(tmp_path / "out")]
    assert predict.main([*map(str, files), *asked]) == 2
    assert f"two.lms3d: found labels of {own.name}; expected brats2020 as in" in capsys.readouterr().err


def test_an_earlier_run_that_does_not_say_its_labels(make_run, tmp_path, capsys):
    """Its data does, if it is still there."""
    unknown = {"data": {"schema": "ours-12345678"}}
    packaged(make_run("one", content=unknown), tmp_path / "one.lms3d")
    gone = make_run("two", data=tmp_path / "moved", content=unknown)
    assert package.main([str(gone)]) == 2
    assert "found no description of the labels ours-12345678" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda run: (run / "config.json").unlink(), "config.json"),
        (lambda run: (run / "best.keras").unlink(), "found nothing; expected the best weights"),
        (lambda run: (run / "best.keras").write_bytes(b"no"), "found a model that cannot be loaded"),
        (lambda run: (run / "history.csv").write_text("a,b\n1,2\n"), "history.csv: found a table that cannot be used"),
        (lambda run: network(outputs=5).save(run / "best.keras"), "head_conv/kernel' of unet3d: found"),
        (lambda run: network("isensee2017").save(run / "best.keras"), "cannot build from its name, unet3d"),
        (lambda run: (run / "tiny.lms3d").write_text("mine"), "found a file that is no package"),
        (lambda run: (run / "tiny.lms3d").mkdir(), "found a folder"),
    ],
)
def test_a_run_that_cannot_be_packaged(run_dir, capsys, damage, says):
    damage(run_dir)
    assert package.main([str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_layers_that_this_version_builds_otherwise(run_dir, capsys, monkeypatch):
    model = network()
    next(layer for layer in model.layers if layer.name == "bottom_a_norm").epsilon = 0.5
    model.save(run_dir / "best.keras")
    assert package.main([str(run_dir)]) == 2
    assert "found layer InstanceNormalization" in capsys.readouterr().err


def test_there_are_no_validation_cases(run_dir, tmp_path, capsys):
    file = packaged(run_dir, tmp_path / "a.lms3d")
    assert predict.main([str(file)]) == 2
    assert "which has no validation cases; name cases or images with --data" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["savedmodel", pytest.param("onnx", marks=pytest.mark.slow)])
def test_an_exported_network_runs_without_lms3d(make_run, form, tmp_path, capsys):
    """In a process of its own, on a case: in half precision, too, it is the network in float32."""
    if form == "onnx":
        needed("onnx", "onnxruntime", "tf2onnx", extra="export")
    run = make_run(precision="mixed_bfloat16")
    assert package.main([str(run)]) == 0
    image = np.random.default_rng(0).normal(size=(1, RESOLUTION, RESOLUTION, RESOLUTION, 4)).astype(np.float32)
    np.save(tmp_path / "image.npy", image)
    assert package.main([str(run / "tiny.lms3d"), "--format", form]) == 0
    path = run / ("tiny.onnx" if form == "onnx" else "tiny-savedmodel")
    said = {
        "savedmodel": "import tensorflow as tf; run = tf.saved_model.load(path).signatures['serving_default'];"
        "found = run(image=tf.constant(image))['probabilities'].numpy()",
        "onnx": "import onnxruntime; run = onnxruntime.InferenceSession(path);"
        "found = run.run(None, {'image': image})[0]; assert 'brats2020' in run.get_modelmeta().custom_metadata_map['lms3d']",
    }[form]
    code = f"import numpy as np, sys; path = {str(path)!r}; image = np.load('image.npy'); {said}; np.save('found.npy', found); "
    code += "assert not [name for name in sys.modules if name.startswith(('lms3d', 'models'))]"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    expected = network("unet3d", 3, "float32", False)(image, training=False).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, atol=1e-4)
    capsys.readouterr()
    assert package.main([str(run), "--format", form]) == 2
    assert f"--output {path}: found something there" in capsys.readouterr().err
    assert not [one for one in run.iterdir() if one.name.startswith(".")]


@pytest.mark.parametrize("options", [{}, {"patch": 16, "box": (32, 16, 32)}])
def test_an_export_is_compared_on_a_case_of_the_run(make_run, tiny_brats, monkeypatch, capsys, options):
    """A validation case, prepared as for a prediction; of a run on patches the middle of it."""
    run = make_run(**options)
    cases, schema = find_cases(tiny_brats)
    validated = cases[2].id
    others = [case.id for case in cases if case.id != validated]
    split.save(split.Split(training=tuple(others), validation=(validated,)), run / "split.json")
    seen = []
    compared = export._compared
    monkeypatch.setattr(
        export, "_compared", lambda path, image, *more: seen.append(image) or compared(path, image, *more)
    )
    assert package.main([str(run), "--format", "savedmodel"]) == 0
    assert f"on case {validated} with the network itself" in capsys.readouterr().out
    (image,) = seen
    trained = BratsConfig.from_json(json.loads((run / "config.json").read_text())["options"])
    volumes = cache.build(cases, schema, preprocessing(trained), workers=1)
    expected = image_planes(normalise.PerCase(), volumes, validated)(0, volumes.shape[0])
    np.testing.assert_array_equal(image[0], expected[8:24, :, 8:24] if options else expected)


def test_the_middle_of_an_image_that_is_smaller_than_a_patch():
    image, around = np.random.default_rng(0).normal(size=(4, 9, 6, 2)).astype(np.float32), np.array([-1, -2])
    found = volume_predict._middle(image, (8, 4, 6), around)
    np.testing.assert_array_equal(found[2:6], image[:, 2:6])
    assert found.shape == (8, 4, 6, 2)
    assert (found[[0, 1, 6, 7]] == around).all()


def test_an_export_without_data_is_compared_on_random_numbers(make_run, tmp_path, capsys):
    run = make_run(data=tmp_path / "gone")
    assert package.main([str(run), "--format", "savedmodel"]) == 0
    said = capsys.readouterr()
    assert "on random numbers with the network itself" in said.out
    assert "note: no case of the run can be read, and random numbers take its place: " in said.out + said.err


def test_an_export_that_says_something_else_is_not_kept(run_dir, monkeypatch, capsys):
    monkeypatch.setattr(export, "_ALLOWED", -1.0)
    assert package.main([str(run_dir), "--format", "savedmodel"]) == 2
    assert "found probabilities that differ from the network's by" in capsys.readouterr().err
    assert not list(run_dir.glob("*savedmodel*")) + list(run_dir.glob(".*"))


def test_a_format_whose_packages_are_missing_is_told_before_anything_is_read(run_dir, monkeypatch, capsys):
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert package.main([str(run_dir), "--format", "onnx"]) == 2
    assert (
        "found no onnx, onnxruntime, tf2onnx; expected it installed: pip install 'lms3d[export]'"
        in capsys.readouterr().err
    )
