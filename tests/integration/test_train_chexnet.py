"""The real command for chest X-rays, one rank: its files, how it resumes, and that LMS changes no bit.

Trained is a small network (`tests.small`); the real ones are in lms3d/engine/test_chexnet_lms.
"""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from lms3d.data.phantoms import chests as radiograph
from tests.caches import private_cache
from tests.one_pixel import RENDERED

EPOCHS = 2


@pytest.fixture(scope="module")
def run(tmp_path_factory, commands):
    """Runs a module of lms3d that has to succeed; returns its output."""
    environment = {**os.environ, "LMS3D_CACHE": str(private_cache(tmp_path_factory.mktemp("cache")))}

    def done(module, *arguments, more=()) -> str:
        """more: variables."""
        words = ["-m", "tests.small", f"lms3d.{module}", *arguments]
        result = commands.run(words, env={**environment, **dict(more)})
        assert result.returncode == 0, result.stderr
        return result.stdout

    return done


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    chests = radiograph.write(tmp_path_factory.mktemp("chests"), images=120, size=48, workers=1)
    return ["--task", "chexnet", "--data", chests, "--model", "resnet50", "--resolution", 32, "--batch-size", 4,
            "--seed", 3, "--steps-per-epoch", 3]  # fmt: skip


@pytest.fixture(scope="module")
def straight(run, options, tmp_path_factory):
    """A run without LMS that nothing disturbed: its folder and its output."""
    run_dir = tmp_path_factory.mktemp("runs") / "straight"
    return run_dir, run("train", *options, "--epochs", EPOCHS, "--no-lms", "--output", run_dir, more=RENDERED)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_what_a_run_leaves(straight):
    run_dir, output = straight
    history = rows(run_dir / "history.csv")
    assert [row["epoch"] for row in history] == ["1", "2"]
    assert all(0 <= float(row[name]) <= 1 for row in history for name in ("auroc", "val_auroc"))
    areas = rows(run_dir / "auroc.csv")
    assert len(areas) == 15
    assert areas[-1]["name"] == "mean"
    assert f"Mean AUROC {float(areas[-1]['auroc']):.3f}" in output
    assert "| Pleural Thickening |" in (run_dir / "auroc.md").read_text()
    for name in ("roc", "auroc", "training", "memory"):
        assert (run_dir / f"figures/{name}.png").stat().st_size > 5000
    assert "nan" not in output


def test_resumed_with_lms_it_ends_with_the_same_bits(run, straight, options, tmp_path):
    undisturbed, _ = straight
    run_dir = tmp_path / "run"
    run("train", *options, "--epochs", 1, "--no-lms", "--output", run_dir)
    run("train", "--output", run_dir, "--resume", "--epochs", EPOCHS, "--lms", "--swapout-threshold", 4)
    with np.load(run_dir / "last/checkpoint.npz") as first, np.load(undisturbed / "last/checkpoint.npz") as second:
        names = [name for name in first.files if name != "state.json"]
        assert len(names) > 20
        for name in names:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    for one, other in zip(rows(run_dir / "history.csv"), rows(undisturbed / "history.csv"), strict=True):
        assert {**one, "seconds": ""} == {**other, "seconds": ""}
    swapped = [float(row["swapped_out_bytes"]) for row in rows(run_dir / "lms_stats.csv") if row["kind"] == "train"]
    assert max(swapped) > 0


def test_the_run_predicts_and_its_areas_are_those_of_training(run, straight, tmp_path):
    run_dir, _ = straight
    run("predict", run_dir, "--output", tmp_path / "out", "--memory-limit", "600MiB")
    run("evaluate", tmp_path / "out")
    found, trained = rows(tmp_path / "out/evaluation/auroc.csv"), rows(run_dir / "auroc.csv")
    assert [row["name"] for row in found] == [row["name"] for row in trained]
    for one, other in zip(found, trained, strict=True):
        assert one["positives"] == other["positives"]
        if other["auroc"]:  # printed probabilities may tie although the network's own did not
            assert float(one["auroc"]) == pytest.approx(float(other["auroc"]), abs=0.02)


def test_plans_are_made_without_data(run):
    options = ["--model", "densenet121", "--resolution", 64, "--batch-size", 8, "--memory-limit", "300MiB"]
    said = run("plan", *options)
    assert "densenet121 at 64^2, batch 8" in said
    assert "peak with this plan" in said
