"""`lms3d.train --task segmentation` and its resume: regions and an ignore label, on patches of volumes that keep their shapes."""

import csv
import json
import subprocess
import sys

import pytest

from tests.data.small_volumes import write_nnunet
from tests.integration.test_train import environment, train  # noqa: F401

ABOUT = {
    "channel_names": {"0": "CT", "1": "PET"},
    "labels": {"background": 0, "whole": [1, 2], "core": 2, "ignore": 3},
    "regions_class_order": [1, 2],
}


@pytest.mark.slow
def test_a_training_and_its_resume(tmp_path, train):  # noqa: F811
    root = write_nnunet(tmp_path / "Dataset007_X", ABOUT, cases=4, values=(1, 2, 3))
    run = tmp_path / "run"
    asked = (
        "--task", "segmentation", "--data", root, "--spacing", "1x1x2", "--patch", "32x32x16", "--model", "resenc",
        "--preset", "S", "--levels", 2, "--steps-per-epoch", 1, "--output", run,
    )  # fmt: skip
    done = train(*asked, "--epochs", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert "label 3 is ignored" in done.stdout
    assert "a validation of 1 whole volume, in 1 window of 32x32x16" in done.stdout
    content = json.loads((run / "config.json").read_text())
    assert content["description"]["has_regions"]
    assert content["spacing_mm"] == [1, 1, 2]
    done = train(*asked, "--epochs", 2, "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    with (run / "history.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert {"val_dice", "val_dice_whole", "val_dice_core"} <= rows[0].keys()
    assert (run / "figures" / "slice.png").is_file()


@pytest.mark.slow
def test_two_ranks_train_a_fold_on_patches(tmp_path, environment, commands):  # noqa: F811
    root = write_nnunet(tmp_path / "Dataset007_X", ABOUT, cases=6, values=(1, 2, 3))
    run = tmp_path / "run"
    command = [
        sys.executable, "-m", "lms3d.launch", "-np", 2, *commands.python(), "-m", "lms3d.train", "--task", "segmentation",
        "--data", root, "--box", "16x16x8", "--patch", "8x16x8", "--model", "resenc", "--preset", "S", "--levels", 2,
        "--folds", 2, "--fold", 1, "--epochs", 1, "--distort", "all", "--output", run,
    ]  # fmt: skip
    done = subprocess.run(
        [*map(str, command)], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "learns from 3 samples, validates on 3" in done.stdout
    assert "a validation of 2 whole volumes a rank, in 6 windows of 8x16x8" in done.stdout
    whole = json.loads((run / "split.json").read_text())
    assert (len(whole["training"]), len(whole["validation"])) == (3, 3)
    assert (run / "best.keras").is_file()
