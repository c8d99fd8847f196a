"""The folds of a cross-validation, scored as one prediction."""

from __future__ import annotations

import csv
import html
import json

import numpy as np
import pytest

from lms3d import evaluate
from lms3d.data import split
from lms3d.tasks.volumes import evaluate as evaluate_volumes
from tests.data.small_data import save
from tests.lms3d.tasks.test_segmentation_scores import AFFINE, NAMED, organs
from tests.lms3d.test_evaluate import write_predictions

pytestmark = pytest.mark.usefixtures("unrendered")

CASES = [f"BraTS20_Training_{number:03}" for number in range(1, 5)]
FOLDS = {"fold0": CASES[1:3], "fold1": [CASES[0], CASES[3]]}


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def without_enhancing(labels):
    return np.where(labels == 4, 1, labels)


@pytest.fixture
def folds(tiny_brats, tmp_path):
    """Two folds of a cross-validation, the second of which finds no enhancing tumour."""
    for name, ids in FOLDS.items():
        write_predictions(tiny_brats, tmp_path / name, 16, without_enhancing if name == "fold1" else np.copy, ids)
    return tmp_path


def pool(root, name="cv", members=("fold0", "fold1")):
    return "--pool", f"{name}={','.join(str(root / member) for member in members)}"


def one_line(capsys):
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_all_cases_are_in_one_table_each_by_the_model_of_its_fold(folds, capsys):
    assert evaluate.main([*pool(folds), "--output", str(folds / "out")]) == 0
    scores = rows(folds / "out/scores.csv")
    assert {row["predictions"] for row in scores} == {"cv"}
    assert {(row["case"], row["fold"]) for row in scores} == {(case, name) for name in FOLDS for case in FOLDS[name]}
    for name, ids in FOLDS.items():  # as if each had been scored alone
        assert evaluate.main([str(folds / name), "--output", str(folds / f"alone-{name}")]) == 0
        alone = [row | {"predictions": "cv", "fold": name} for row in rows(folds / f"alone-{name}/scores.csv")]
        assert [row for row in scores if row["case"] in ids] == alone
    of_et = [float(row["dice"]) for row in scores if (row["region"], row["space"]) == ("ET", "native")]
    (row,) = [row for row in rows(folds / "out/summary.csv") if (row["region"], row["space"]) == ("ET", "native")]
    assert (row["predictions"], row["cases"]) == ("cv", "4")
    assert np.mean(of_et) < 1
    assert float(row["mean"]) == pytest.approx(np.mean(of_et), abs=1e-6)
    note = "cv pools 2 folds, each with a model of its own: a case has the score of its fold's model"
    assert note in capsys.readouterr().out
    assert note in (folds / "out/summary.md").read_text()
    assert note in html.unescape((folds / "out/report.html").read_text())


def test_two_cross_validations_and_one_run_are_compared_case_by_case(folds, tiny_brats):
    write_predictions(tiny_brats, folds / "other0", 16, ids=CASES[:1])
    write_predictions(tiny_brats, folds / "other1", 16, ids=CASES[1:])
    write_predictions(tiny_brats, folds / "one", 16)
    command = [str(folds / "one"), *pool(folds), *pool(folds, "other", ("other0", "other1"))]
    assert evaluate.main([*command, "--output", str(folds / "out")]) == 0
    summary = rows(folds / "out/summary.csv")
    assert list(dict.fromkeys(row["predictions"] for row in summary)) == ["one", "cv", "other"]
    assert {row["cases"] for row in summary} == {"4"}
    compared = {
        (row["first"], row["second"]): row for row in rows(folds / "out/comparison.csv") if row["region"] == "ET"
    }
    assert compared["one", "cv"]["cases"] == "4"
    assert float(compared["one", "cv"]["difference"]) < float(compared["one", "other"]["difference"]) == 0


def test_cross_validations_of_several_seeds_are_a_group(folds, tiny_brats, capsys):
    """Each seed has one score for each case: that of its fold's model."""
    for seed in (1, 2):
        for name, ids in FOLDS.items():
            folder = folds / f"{name}-seed{seed}"
            write_predictions(tiny_brats, folder, 16, without_enhancing if seed == 2 else np.copy, ids)
            (folder / "config.json").write_text(json.dumps({"options": {"seed": seed}}))
    of_seeds = [word for seed in (1, 2) for word in pool(folds, f"cv{seed}", [f"{name}-seed{seed}" for name in FOLDS])]
    command = ["--group", "all=cv1,cv2", *of_seeds, *pool(folds)]
    assert evaluate.main([*command, "--output", str(folds / "out")]) == 0
    found = rows(folds / "out/scores.csv")
    assert {(row["predictions"], row["fold"]) for row in found if row["predictions"] != "cv"} == {
        (f"cv{seed}", f"{name}-seed{seed}") for seed in (1, 2) for name in FOLDS
    }
    summary = {row["predictions"]: row for row in rows(folds / "out/summary.csv") if row["region"] == "ET"}
    assert set(summary) == {"all", "cv"}
    (compared, *_) = rows(folds / "out/comparison.csv")
    assert {compared["first"], compared["second"]} == {"all", "cv"}
    of_group = evaluate_volumes.inputs.seeds_of(
        evaluate_volumes.inputs.load_all([folds / f"{name}-seed{seed}" for seed in (1, 2) for name in FOLDS]),
        {"cv1": ["fold0-seed1", "fold1-seed1"], "mixed": ["fold0-seed1", "fold1-seed2"]},
    )
    assert (of_group["cv1"], "mixed" in of_group) == (1, False)
    capsys.readouterr()
    assert evaluate.main(["--group", "again=cv1", *command, "--output", str(folds / "out")]) == 2
    assert "--group: found the pool cv1 twice; expected it in one group" in one_line(capsys)


def test_a_case_in_two_folds_is_one_line(folds, tiny_brats, capsys):
    write_predictions(tiny_brats, folds / "fold2", 16, ids=CASES[2:])
    assert evaluate.main([*pool(folds, members=("fold0", "fold1", "fold2")), "--output", str(folds / "out")]) == 2
    error = one_line(capsys)
    assert f"--pool cv: found 1 case in fold0 and in fold2, such as {CASES[2]}; expected each case in one fold" in error
    assert not (folds / "out/scores.csv").exists()


def test_folds_that_are_not_pooled_have_nothing_to_compare(folds, capsys):
    assert evaluate.main([str(folds / "fold0"), str(folds / "fold1"), "--output", str(folds / "out")]) == 2
    error = one_line(capsys)
    assert "found no case that is in all of fold0, fold1" in error
    assert "with --pool NAME=RUN,RUN" in error


@pytest.mark.parametrize("taken", [(), ("--group", "g={0}/one,{0}/two"), ("--group", "cv={0}/one,{0}/two")])
def test_a_name_is_that_of_one_pool(folds, tiny_brats, taken, capsys):
    for name in ("one", "two"):
        write_predictions(tiny_brats, folds / name, 16)
    name = "one" if taken and taken[1].startswith("g") else "cv"
    given = [text.format(folds) for text in taken] or pool(folds, "cv", ("one",))
    assert evaluate.main([*given, *pool(folds, name), "--output", str(folds / "out")]) == 2
    assert f"--pool {name}: found the name twice" in one_line(capsys)


def test_a_fold_that_has_trained_on_its_cases_is_told(folds, capsys):
    known = split.Split(training=(CASES[0], CASES[1]), validation=tuple(CASES[2:]))
    split.save(known, folds / "fold0/split.json")  # the folder of the run is that of its predictions here
    assert evaluate.main([*pool(folds), "--output", str(folds / "out")]) == 0
    told = f"1 of 2 cases of fold0, or other scans of their patients, have trained its network, such as {CASES[1]}"
    assert told in capsys.readouterr().out
    assert told in (folds / "out/summary.md").read_text()


def test_the_validation_folders_of_nnunet(tmp_path, capsys):
    """Every fold has a folder of the same name, and a case that no fold has is told of."""
    raw, content = tmp_path / "Dataset007_X", {"channel_names": {"0": "CT"}, "labels": NAMED, "file_ending": ".nii.gz"}
    for number in range(5):
        truth = organs(number, 3)
        save(truth.astype(np.int16), raw / f"imagesTr/x_{number}_0000.nii.gz", AFFINE)
        save(truth, raw / f"labelsTr/x_{number}.nii.gz", AFFINE)
        if number < 4:
            found = np.roll(truth, number % 2, axis=0)
            save(found, tmp_path / f"fold_{number % 2}/validation/x_{number}.nii.gz", AFFINE)
    (raw / "dataset.json").write_text(json.dumps(content))
    members = pool(tmp_path, members=("fold_0/validation", "fold_1/validation"))
    assert evaluate.main([*members, "--truth", str(raw), "--output", str(tmp_path / "out")]) == 0
    scores = rows(tmp_path / "out/scores.csv")
    assert len(scores) == 4 * 3
    for row in scores:
        fold = int(row["case"][-1]) % 2
        assert row["fold"] == str(tmp_path / f"fold_{fold}/validation")
        assert (row["dice"] == "1.000000") == (fold == 0)
    assert "1 case of the truth has no prediction and is left out: x_4" in capsys.readouterr().err
