"""The tasks of the Decathlon at toy size: train under a limit that needs LMS, predict, score, package, export."""

import json
import os
from pathlib import Path

import pytest

from tests.caches import private_cache
from tests.data.segmentation.test_layouts import DECATHLON
from tests.data.small_data import save
from tests.data.small_volumes import affine, described, images_of, labels_of
from tests.integration.test_guides import ROOT
from tests.thorough import also

SHAPE = (24, 20, 16)
NETWORK = "--model resenc --preset S --levels 2 --box 32x32x16 --memory-limit 20MiB"
SHORT = "--epochs 1 --steps-per-epoch 1 --validation-steps 1"
USUAL = "Task05_Prostate"  # two channels and two labels


def write(root: Path, task: str) -> Path:
    """Three cases with a slab for each label."""
    stem, channels, labels = DECATHLON[task]
    names = [f"{stem.rstrip('0123456789')}{number:03}.nii.gz" for number in range(3)]
    for number, name in enumerate(names):
        images = images_of(number, len(channels), SHAPE)
        save(images if len(channels) > 1 else images[..., 0], root / "imagesTr" / name, affine())
        save(labels_of(range(1, len(labels) + 1), SHAPE), root / "labelsTr" / name, affine())
    return described(root, {
        "name": task, "modality": {str(i): name for i, name in enumerate(channels)},
        "labels": {"0": "background", **{str(i): name for i, name in enumerate(labels, start=1)}},
        "training": [{"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"} for name in names], "test": [],
    })  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("task", [USUAL, *also(*(name for name in DECATHLON if name != USUAL))])
def test_a_task_from_its_folder_to_an_export(task, tmp_path, commands):
    data = write(tmp_path / task, task)
    environment = {**os.environ, "LMS3D_CACHE": str(private_cache(tmp_path / "cache")), "PYTHONPATH": str(ROOT)}

    def run(*line: object) -> str:
        done = commands.run(["-m", "tests.small", *map(str, line)], cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    any_organ = ["--task", "segmentation"] if task.startswith("Task01") else []  # whose brains have a task of their own
    run("lms3d.train", "--data", data, *any_organ, *NETWORK.split(), *SHORT.split(), "--output", "run")
    report = json.loads((tmp_path / "run/lms_plan.json").read_text())["train"]["report"]
    assert report["unedited_limit_bytes"] > report["limit_bytes"] >= report["measured_peak_bytes"]
    run("lms3d.predict", "run")
    scores = run("lms3d.evaluate", "run")
    assert all(name in scores for name in DECATHLON[task][2])
    run("lms3d.package", "run", "--output", "task.lms3d")
    run("lms3d.package", "task.lms3d", "--format", "savedmodel")
    assert (tmp_path / "task-savedmodel/saved_model.pb").is_file()
