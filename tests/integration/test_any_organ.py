"""The commands of docs/any_organ.md, in their order, on small artificial abdomens, under a limit that needs LMS."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nibabel
import numpy as np
import pytest

from lms3d import tasks
from lms3d.data.phantoms import abdomens
from lms3d.data.segmentation import layouts
from lms3d.data.segmentation.grid import Grid
from lms3d.data.segmentation.intensities import ByChannel
from lms3d.data.volumes import cache, planes
from tests.caches import private_cache
from tests.data.small_data import save
from tests.data.small_volumes import described
from tests.integration.test_guides import ROOT, lines

HAS_ONNX = all(find_spec(name) for name in ("onnx", "onnxruntime", "tf2onnx"))
SMALLER = {"160x160x96": "32x32x16", "6GiB": "20MiB", "onnx": "onnx" if HAS_ONNX else "savedmodel"}
TRAINED = "--preset S --levels 2 --epochs 1 --steps-per-epoch 1 --validation-steps 1"
RUN_IT = {
    "onnx": "import onnxruntime; run = onnxruntime.InferenceSession(path); said = run.run(None, {'image': image})[0]",
    "savedmodel": "import tensorflow as tf; run = tf.saved_model.load(path).signatures['serving_default']; "
    "said = run(image=tf.constant(image))['probabilities'].numpy()",
}


def small(words: list[str], sets: dict[str, Path]) -> list[str]:
    """The same command for a minute, without "python"."""
    line = [SMALLER.get(word) or re.sub(r"^~/(\w+)", lambda found: str(sets[found[1]]), word) for word in words[1:]]
    if "lms3d.data.prepare" in line:
        return line
    more = TRAINED.split() if "lms3d.train" in line else []
    return [line[0], "tests.small", *line[1:], *more]


def as_decathlon(raw: Path, root: Path) -> Path:
    """The cases of a raw folder of nnU-Net as a task of the Decathlon has them: the channels of a case in one file."""
    about = json.loads((raw / "dataset.json").read_text())
    for truth in (raw / "labelsTr").iterdir():
        case = truth.name.removesuffix(".nii.gz")
        channels = [nibabel.load(raw / f"imagesTr/{case}_{k:04}.nii.gz") for k in range(len(about["channel_names"]))]
        whole = np.stack([np.asarray(one.dataobj) for one in channels], axis=-1)
        save(whole, root / f"imagesTr/{case}.nii.gz", channels[0].affine)
        (root / "labelsTr").mkdir(exist_ok=True)
        shutil.copyfile(truth, root / "labelsTr" / truth.name)
    labels = {str(value): name for name, value in about["labels"].items()}
    return described(root, {"name": "Spleen", "modality": about["channel_names"], "labels": labels})


def dice_of(values: list[int], predictions: Path, truths: Path) -> dict[tuple[str, int], float]:
    """(case, value) -> MONAI's Dice (`DiceMetric(include_background=False)`): 2 |P and T| / (|P| + |T|), none without a truth."""
    found = {}
    for path in predictions.iterdir():
        predicted, true = (np.asarray(nibabel.load(folder / path.name).dataobj) for folder in (predictions, truths))
        for value in values:
            p, t = predicted == value, true == value
            if t.any():
                found[path.name.removesuffix(".nii.gz"), value] = 2 * (p & t).sum() / (p.sum() + t.sum())
    return found


def as_the_network_takes_it(run: Path, data: Path, case: str) -> np.ndarray:
    """The image of a case, (A, B, C, channels), prepared and normalised as the run says. Training has filled the cache."""
    _, content = tasks.load(run)
    cases, schema = layouts.find(data).data_set
    built = cache.build(cases, schema, Grid.from_json(content["preprocessing"]), workers=1)
    read = planes.image_planes(ByChannel.from_json(content["normalisation"]), built, case)
    return read(0, built.shape[0])


def labels_by_export(exported: Path, image: np.ndarray, folder: Path) -> np.ndarray:
    """The label map that an exported network makes of an image, in a process without lms3d."""
    np.save(folder / "image.npy", image[np.newaxis])
    code = (
        f"import numpy as np, sys; path = {str(exported)!r}; image = np.load('image.npy'); {RUN_IT[SMALLER['onnx']]}; "
    )
    code += "np.testing.assert_allclose(said.sum(-1), 1, rtol=1e-4); np.save('labels.npy', said[0].argmax(-1)); "
    code += "assert not [name for name in sys.modules if name.startswith('lms3d')]"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=240)
    return np.load(folder / "labels.npy")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_runs(tmp_path, commands, monkeypatch):
    one, two = (abdomens.write(tmp_path / str(n), cases=4, channels=n, shape=(40, 32, 16), workers=1) for n in (1, 2))
    shutil.copytree(one / "labelsTr", tmp_path / "nnunet_output")
    sets = {"Dataset017_Abdomen": one, "Task09_Spleen": as_decathlon(two, tmp_path / "Task09_Spleen")}
    environment = {**os.environ, "LMS3D_CACHE": str(private_cache(tmp_path / "cache")), "PYTHONPATH": str(ROOT)}
    said = []
    for words in lines("any_organ.md"):
        done = commands.run(small(words, sets), cwd=tmp_path, env=environment)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        assert "oneDNN" not in done.stderr  # nor does TensorFlow say anything else
        said.append(done.stdout)
    assert "proposal for 20.0MiB" in said[0] or "proposal: not even" in said[0]
    assert "start anew: stem_conv/kernel" in said[-1]  # it reads another number of channels
    report = json.loads((tmp_path / "runs/abdomen/lms_plan.json").read_text())["train"]["report"]
    assert report["unedited_limit_bytes"] > report["limit_bytes"] >= report["measured_peak_bytes"]
    again = sorted((tmp_path / "again/native").iterdir())
    assert [path.name for path in again] == [f"abdomen_00{n}.nii.gz" for n in (1, 2, 3, 4)]
    image, labels = (nibabel.load(path) for path in (one / "imagesTr/abdomen_001_0000.nii.gz", again[0]))
    np.testing.assert_array_equal(image.affine, labels.affine)
    assert labels.shape == image.shape
    with (tmp_path / "comparison/scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["space"] == "native"]
    assert {row["predictions"] for row in rows} == {"nnunet_output", "abdomen"}
    expected = dice_of(
        list(abdomens.LABELS.values())[1:], tmp_path / "runs/abdomen/predictions/native", one / "labelsTr"
    )
    found = {
        (row["case"], abdomens.LABELS[row["region"]]): float(row["dice"])
        for row in rows
        if row["predictions"] == "abdomen" and row["dice"]
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-6)
    assert (tmp_path / "comparison/dice_native.png").is_file()
    monkeypatch.setenv("LMS3D_CACHE", environment["LMS3D_CACHE"])
    image = as_the_network_takes_it(tmp_path / "runs/abdomen", one, "abdomen_003")
    found = labels_by_export(tmp_path / ("abdomen.onnx" if HAS_ONNX else "abdomen-savedmodel"), image, tmp_path)
    predicted = np.asarray(nibabel.load(tmp_path / "runs/abdomen/predictions/cube/abdomen_003.nii.gz").dataobj)
    assert len(np.unique(predicted)) > 1
    assert (found == predicted).mean() > 0.999  # unless two classes tie
