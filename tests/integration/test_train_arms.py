"""The arms of a comparison by the real commands: boxes, patches, regions, schedules, folds, weights of other runs, ensembles.

With small networks (`tests.small`).
"""

import csv
import json
import shutil

import nibabel as nib
import numpy as np
import pytest

from lms3d.data import split
from tests.integration.test_train import brains, environment, train  # noqa: F401
from tests.one_pixel import RENDERED


@pytest.fixture(scope="module")
def call(environment, commands):  # noqa: F811
    """`call("predict", ...)`: runs a command of lms3d."""

    def run(name, *arguments):
        return commands.run(["-m", "tests.small", f"lms3d.{name}", *arguments], env=environment)

    return run


@pytest.fixture(scope="module")
def boxed(train, brains, tmp_path_factory):  # noqa: F811
    """Two folds of one cross-validation, on patches of a box, with everything that an arm may have."""
    folder = tmp_path_factory.mktemp("arms")
    runs = []
    for fold in (0, 1):
        runs.append(folder / f"fold{fold}")
        done = train(
            "--data", brains, "--box", "32x48x32", "--patch", 16, "--targets", "regions", "--distort", "all",
            "--schedule", "cosine", "--ema", 0.9, "--accumulate", 2, "--folds", 2, "--fold", fold, "--epochs", 2,
            "--validation-batch-size", 2, "--deep-supervision", "--symmetries", "flips", "--loss", "dice_cross_entropy",
            "--output", runs[-1], more=RENDERED,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
    return runs


def split_of(run_dir):
    return json.loads((run_dir / "split.json").read_text())


def test_folds_share_the_cases_among_them(boxed):
    first, second = map(split_of, boxed)
    assert set(first["training"]) == set(second["validation"])
    assert set(first["validation"]) == set(second["training"])


def test_what_was_asked_for_is_in_the_run(boxed):
    options = json.loads((boxed[0] / "config.json").read_text())["options"]
    asked = {name: options[name] for name in ("box", "patch", "targets", "schedule", "ema", "accumulate", "symmetries")}
    assert asked == {"box": [32, 48, 32], "patch": 16, "targets": "regions", "schedule": "cosine", "ema": 0.9,
                     "accumulate": 2, "symmetries": "flips"}  # fmt: skip
    rows = list(csv.DictReader((boxed[0] / "history.csv").read_text().splitlines()))
    assert float(rows[1]["learning_rate"]) < float(rows[0]["learning_rate"])
    assert (boxed[0] / "figures/slice.png").stat().st_size > 1000  # made with the sliding window


def test_an_ensemble_is_the_mean_of_its_runs(boxed, brains, call, tmp_path):  # noqa: F811
    refused = call("predict", *boxed)
    assert (refused.returncode, "--output" in refused.stderr) == (2, True)
    refused = call("predict", *boxed, "--output", tmp_path / "x")
    assert (refused.returncode, "found another validation split" in refused.stderr) == (2, True)
    done = call("predict", *boxed, "--data", brains, "--output", tmp_path / "both", "--tta", "--symmetries", "mirror")
    assert (done.returncode, done.stderr) == (0, "")
    index = json.loads((tmp_path / "both/predictions.json").read_text())
    assert (index["label"], index["tta"], index["stretched"], index["shape"]) == ("both", "mirror", False, [32, 48, 32])
    case = next(iter(index["cases"]))
    written, original = (
        nib.load(path) for path in (tmp_path / f"both/native/{case}.nii.gz", next(brains.rglob(f"{case}_t1.nii.gz")))
    )
    assert written.shape == original.shape
    np.testing.assert_array_equal(written.affine, original.affine)
    done = call("evaluate", tmp_path / "both")
    assert (done.returncode, done.stderr) == (0, "")


def test_weights_of_a_lower_resolution_start_a_higher_one(boxed, train, brains, tmp_path):  # noqa: F811
    start = ("--data", brains, "--targets", "regions", "--start-from", boxed[0], "--epochs", 1, "--deep-supervision")
    done = train(*start, "--resolution", 32, "--output", tmp_path / "more")
    assert (done.returncode, done.stderr) == (0, "")
    first = next(iter(csv.DictReader((tmp_path / "more/history.csv").read_text().splitlines())))
    new = ("--data", brains, "--targets", "regions", "--epochs", 1, "--resolution", 32, "--deep-supervision")
    afresh = train(*new, "--output", tmp_path / "new")
    assert afresh.returncode == 0
    other = next(iter(csv.DictReader((tmp_path / "new/history.csv").read_text().splitlines())))
    assert float(first["loss"]) < float(other["loss"])


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--targets", "labels"], "found a run of isensee2017 with --targets regions"),
        (["--targets", "regions", "--model", "unet3d"], "found a run of isensee2017"),
        (["--targets", "regions"], "--deep-supervision in both or in neither"),
        (
            ["--targets", "regions", "--model", "unet3d", "--deep-supervision"],
            "--deep-supervision: unet3d has one head",
        ),
        (["--targets", "regions", "--folds", "2", "--fold", "2"], "--fold 2 of --folds 2: expected 0 to 1"),
        (
            ["--targets", "regions", "--deep-supervision", "--patch", "48"],
            "--patch 48: expected at most the volume, 32^3",
        ),
        (["--targets", "regions", "--deep-supervision", "--folds", "2", "--fold", "1"], "its weights have seen"),
        (["--targets", "regions", "--fold", "1"], "--fold 1: without --folds there are none"),
        (["--targets", "regions", "--distort", "blur"], "--distort: found 'blur'"),
    ],
)
def test_what_does_not_go_together_is_one_line(boxed, train, brains, tmp_path, more, told):  # noqa: F811
    done = train("--data", brains, "--resolution", 32, "--start-from", boxed[0], "--output", tmp_path / "x", *more)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


STAGED = ("--resolution", 48, "--stages", "16:2,32:1", "--epochs", 1, "--seed", 1)


@pytest.fixture(scope="module")
def staged(train, brains, tmp_path_factory):  # noqa: F811
    """A run of three resolutions, undisturbed."""
    run_dir = tmp_path_factory.mktemp("staged") / "straight"
    done = train("--data", brains, *STAGED, "--output", run_dir)
    assert (done.returncode, done.stderr) == (0, "")
    return run_dir


def test_stages_are_runs_of_their_own_each_started_by_the_one_before(staged):
    options = {
        name: json.loads((staged / name / "config.json").read_text())["options"]
        for name in (".", "stages/16", "stages/32")
    }
    assert [one["resolution"] for one in options.values()] == [48, 16, 32]
    assert options["stages/16"]["start_from"] is None
    assert options["stages/32"]["start_from"] == str(staged / "stages/16")
    assert len({split.load(staged / name / "split.json") for name in options}) == 1
    rows = list(csv.DictReader((staged / "stages/16/history.csv").read_text().splitlines()))
    assert len(rows) == 2


def test_interrupted_in_a_stage_it_goes_on_there_and_ends_the_same(staged, train, brains, tmp_path):  # noqa: F811
    run_dir = tmp_path / "again"
    (run_dir / "stages").mkdir(parents=True)
    shutil.copytree(staged / "stages/16", run_dir / "stages/16")  # as if it had been stopped between two stages
    refused = train("--data", brains, *STAGED, "--output", run_dir)
    assert (refused.returncode, "holds another run" in refused.stderr) == (2, True)
    refused = train("--data", brains, *STAGED, "--learning-rate", 0.1, "--output", run_dir, "--resume")
    assert (refused.returncode, "found a stage with --learning-rate" in refused.stderr) == (2, True)
    shutil.copy(staged / "config.json", run_dir)  # written before the first stage
    done = train("--output", run_dir, "--resume")  # what an interrupted run tells to type
    assert done.returncode == 0, done.stderr
    assert "Stage at 16^3" not in done.stdout
    assert "Stage at 32^3" in done.stdout
    rows, expected = (list(csv.DictReader((one / "history.csv").read_text().splitlines())) for one in (run_dir, staged))
    assert [row["val_loss"] for row in rows] == [row["val_loss"] for row in expected]


@pytest.mark.parametrize(
    ("stages", "told"), [("64", "RESOLUTION:EPOCHS"), ("32:1,16:1", "must rise"), ("20:1", "multiple of 16")]
)
def test_wrong_stages_are_one_line(train, brains, stages, told):  # noqa: F811
    done = train("--data", brains, "--stages", stages)
    assert done.returncode == 2
    assert told in done.stderr
