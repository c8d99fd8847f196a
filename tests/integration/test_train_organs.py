"""`lms3d.train --task segmentation`: regions of volumes that keep their shapes, in patches, under a limit that needs LMS."""

import csv
import json

import pytest

from lms3d import train
from tests.data.small_volumes import write_nnunet

ABOUT = {
    "channel_names": {"0": "CT", "1": "PET"},
    "labels": {"background": 0, "whole": [1, 2], "core": 2, "ignore": 3},
    "regions_class_order": [1, 2],
}


@pytest.mark.slow
def test_a_training_and_its_resume(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "caches"))
    root = write_nnunet(tmp_path / "Dataset007_X", ABOUT, cases=4, values=(1, 2, 3))
    run = tmp_path / "run"
    asked = [
        "--task", "segmentation", "--data", root, "--spacing", "1x1x2", "--patch", "32x32x16", "--model", "unet3d",
        "--memory-limit", "36MiB", "--steps-per-epoch", 1, "--output", run,
    ]  # fmt: skip
    assert train.main([*map(str, asked), "--epochs", "1"]) == 0
    assert "label 3 is ignored" in "".join(capsys.readouterr())
    assert "LMS takes the train step from a predicted peak" in (run / "lms_report.md").read_text()
    content = json.loads((run / "config.json").read_text())
    assert content["description"]["has_regions"]
    assert content["spacing_mm"] == [1, 1, 2]
    assert train.main([*map(str, asked), "--epochs", "2", "--resume"]) == 0
    rows = list(csv.DictReader((run / "history.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert {"val_dice", "val_dice_whole", "val_dice_core"} <= rows[0].keys()
    assert (run / "figures" / "slice.png").is_file()
