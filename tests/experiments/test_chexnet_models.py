"""`experiments.chexnet_models` with trainings that only leave what a real one leaves; tests/integration has the real one."""

import csv
from pathlib import Path

import keras
import pytest

from lms3d import train
from lms3d.experiments import chexnet_models
from lms3d.experiments.harness import commands

SPEED = {"densenet121": 2.0, "resnet50": 1.0}  # seconds of a step
AREA = {"densenet121": "0.8", "resnet50": "0.85"}


@pytest.fixture
def trainings(monkeypatch):
    """Trains nothing; the models that were asked for."""
    asked = []

    def run(words):
        assert words[1:3] == ["-m", "lms3d.train"]
        options = vars(train._parser().parse_args(words[3:]))
        assert (options["task"], options["lms"], options["resume"]) == ("chexnet", False, True)
        asked.append(options["model"])
        leave(options["output"], options["model"], options["epochs"])

    monkeypatch.setattr(commands, "run", run)
    return asked


def leave(run_dir: Path, model: str, epochs: int) -> None:
    run_dir.mkdir(parents=True)
    seconds = SPEED[model]
    rows = [
        f"train,{epoch},{seconds if epoch > 1 else 9 * seconds},1048576"
        for epoch in range(1, epochs + 1)
        for _ in range(3)
    ]
    (run_dir / "lms_stats.csv").write_text(
        "\n".join(["kind,epoch,seconds,peak_bytes", *rows, "test,2,0.1,5242880"]) + "\n"
    )
    (run_dir / "history.csv").write_text(
        "epoch,seconds\n" + "".join(f"{n},{(1 if n else 7) * 10 * seconds}\n" for n in range(epochs))
    )
    (run_dir / "auroc.csv").write_text(f"name,auroc,low,high\nHernia,0.1,nan,nan\nmean,{AREA[model]},0.7,0.9\n")
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    network.save(run_dir / "best.keras")


def compare(tmp_path, *words):
    return chexnet_models.main([*words, "--batch-size", "8", "--output", str(tmp_path / "out")])


def test_both_models_alike_in_one_table(trainings, tmp_path, capsys):
    assert compare(tmp_path) == 0, capsys.readouterr().err
    with (tmp_path / "out/models.csv").open(newline="") as file:
        found = {row["model"]: row for row in csv.DictReader(file)}
    assert float(found["densenet121"]["images_per_second"]) == 4  # without the first epoch
    assert float(found["resnet50"]["images_per_second"]) == 8
    assert {row["parameters"] for row in found.values()} == {"16"}
    assert {row["peak_bytes"] for row in found.values()} == {"1048576"}  # of training steps
    assert (found["resnet50"]["auroc"], found["resnet50"]["auroc_low"]) == ("0.85", "0.7")
    text = (tmp_path / "out/report.md").read_text()
    assert "| resnet50 | 16 | 8 | 2.00 x | 10.0 s | 1.00 MiB | 0.850 | 0.700 to 0.900 |" in text
    assert "says nothing about patients" in text
    assert compare(tmp_path) == 0
    assert trainings == ["densenet121", "resnet50"]  # a finished model is kept


def test_other_settings_do_not_mix_with_what_is_there(trainings, tmp_path, capsys):
    assert compare(tmp_path, "--models", "resnet50") == 0
    assert compare(tmp_path, "--models", "resnet50", "--epochs", "4") == 2
    assert "epochs" in capsys.readouterr().err
    assert trainings == ["resnet50"]


def test_a_run_without_its_files_is_named(trainings, tmp_path, capsys):
    assert compare(tmp_path, "--models", "resnet50") == 0
    (tmp_path / "out/resnet50/lms_stats.csv").unlink()
    assert compare(tmp_path, "--models", "resnet50") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "resnet50" in line
    assert "delete it and run again" in line
