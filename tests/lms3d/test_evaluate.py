"""From label maps on disk to tables and box plots."""

from __future__ import annotations

import csv
import shutil

import matplotlib.image
import numpy as np
import pytest

from data.brats import layouts
from data.brats.case import load_images, load_truth
from data.brats.preprocess import foreground_box, resize
from data.brats.schema import SCHEMAS
from lms3d import evaluate
from lms3d.tasks.brats.label_maps import Predictions, cube_affine, read_labels, write_labels


def write_predictions(root, directory, resolution, change=lambda labels: labels, ids=None) -> None:
    """What predict would write if its network returned `change(truth)` at `resolution`."""
    cases, schema = layouts.find_cases(root)
    geometries = {}
    for case in cases:
        if ids and case.id not in ids:
            continue
        images, affine = load_images(case)
        box = foreground_box(images)
        truth = load_truth(case, schema)
        geometries[case.id] = {"shape": list(truth.shape), "affine": affine.tolist(),
                               "box": [list(box.lower), list(box.upper)]}  # fmt: skip
        cube = resize(truth[box.slices], (resolution,) * 3, "nearest")
        write_labels(change(truth), affine, directory / "native" / f"{case.id}.nii.gz")
        cube_to_mm = cube_affine(geometries[case.id], resolution)
        write_labels(change(cube), cube_to_mm, directory / "cube" / f"{case.id}.nii.gz")
    Predictions(
        directory=directory, label=directory.name, run=str(directory), model="unet3d", resolution=resolution, tta=False,
        data=str(root), fingerprint="", schema="brats2020", cases=geometries,
    ).save()  # fmt: skip


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_perfect_prediction_scores_one_everywhere(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "perfect", 48)
    assert evaluate.main([str(tmp_path / "perfect"), "--hd95"]) == 0
    scores = rows(tmp_path / "perfect/evaluation/scores.csv")
    assert len(scores) == 4 * 2 * 3
    assert {row["dice"] for row in scores} == {"1.000000"}
    assert {row["hd95_mm"] for row in scores} == {"0.000000", ""}
    assert "| perfect | native | WT | 4 | 1.000 ± 0.000 |" in capsys.readouterr().out
    for name in ("dice_native", "dice_cube"):
        picture = matplotlib.image.imread(tmp_path / f"perfect/evaluation/{name}.png")
        assert picture.shape[1] > 1000
        assert picture.std() > 0.01
        assert (tmp_path / f"perfect/evaluation/{name}.pdf").read_bytes().startswith(b"%PDF")


def test_known_errors_give_known_scores(tiny_brats, tmp_path):
    write_predictions(tiny_brats, tmp_path / "no_et", 32, lambda labels: np.where(labels == 4, 1, labels))
    assert evaluate.main([str(tmp_path / "no_et"), "--output", str(tmp_path / "out")]) == 0
    found = {(row["case"][-3:], row["region"]): float(row["dice"]) for row in rows(tmp_path / "out/scores.csv")}
    assert [found["001", region] for region in ("WT", "TC", "ET")] == [1, 1, 0]
    assert found["002", "ET"] == 1  # there is none, and none was predicted


def test_low_resolution_is_resized_to_the_high_one_and_scored_against_its_truth(tiny_brats, tmp_path):
    write_predictions(tiny_brats, tmp_path / "16", 16)
    write_predictions(tiny_brats, tmp_path / "48", 48)
    assert evaluate.main([str(tmp_path / "16"), str(tmp_path / "48"), "--output", str(tmp_path / "out")]) == 0
    summary = {(row["predictions"], row["space"], row["region"]): row for row in rows(tmp_path / "out/summary.csv")}
    assert float(summary["48", "cube", "TC"]["mean"]) == 1
    assert 0.5 < float(summary["16", "cube", "TC"]["mean"]) < 0.98
    assert float(summary["16", "native", "TC"]["mean"]) == 1
    case = layouts.find_cases(tiny_brats)[0][0]
    truth = load_truth(case, SCHEMAS["brats2020"])
    box = foreground_box(load_images(case)[0])
    small = resize(resize(truth[box.slices], (16,) * 3, "nearest"), (48,) * 3, "nearest") > 0
    large = resize(truth[box.slices], (48,) * 3, "nearest") > 0
    expected = 2 * (small & large).sum() / (small.sum() + large.sum())
    scores = {tuple(row.values())[:4]: row for row in rows(tmp_path / "out/scores.csv")}
    assert float(scores["16", case.id, "cube", "WT"]["dice"]) == pytest.approx(expected, abs=1e-6)


def test_only_shared_cases_are_compared_and_the_rest_is_told(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "a", 16)
    write_predictions(tiny_brats, tmp_path / "b", 16, ids={"BraTS20_Training_002"})
    assert evaluate.main([str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "out")]) == 0
    assert {row["case"] for row in rows(tmp_path / "out/scores.csv")} == {"BraTS20_Training_002"}
    assert "3 predicted cases are left out" in capsys.readouterr().err


def test_cube_affine_puts_cube_corners_on_box_corners():
    geometry = {"affine": np.diag([2.0, 2, 3, 1]).tolist(), "box": [[2, 4, 6], [12, 24, 36]]}
    to_mm = cube_affine(geometry, 40)
    np.testing.assert_allclose(to_mm @ [-0.5, -0.5, -0.5, 1], [3, 7, 16.5, 1])  # outer corner of voxel (2, 4, 6)
    np.testing.assert_allclose(to_mm @ [39.5, 39.5, 39.5, 1], [23, 47, 106.5, 1])


def test_label_maps_keep_values_and_affine(tmp_path):
    labels, affine = np.arange(24).reshape(2, 3, 4), np.diag([1.0, 2, 3, 1])
    write_labels(labels, affine, tmp_path / "a" / "b.nii.gz")
    found, found_affine = read_labels(tmp_path / "a" / "b.nii.gz")
    np.testing.assert_array_equal(found, labels)
    np.testing.assert_array_equal(found_affine, affine)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.nii.gz"]


def broken_folder(tiny_brats, tmp_path, kind):
    folder = tmp_path / "p"
    if kind == "nothing":
        return folder
    folder.mkdir()
    if kind == "run":
        (folder / "config.json").write_text("{}")
    if kind in ("lost file", "truncated", "wrong shape", "bad index"):
        write_predictions(tiny_brats, folder, 16)
    victim = folder / "native" / "BraTS20_Training_001.nii.gz"
    if kind == "lost file":
        victim.unlink()
    if kind == "truncated":
        victim.write_bytes(victim.read_bytes()[:60])
    if kind == "wrong shape":
        shutil.copy(folder / "cube" / victim.name, victim)
    if kind == "bad index":
        (folder / "predictions.json").write_text('{"label": ')
    return folder


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("nothing", "found nothing; expected a folder that lms3d.predict made"),
        ("empty", "found no predictions.json"),
        ("run", "a run without predictions; expected finished predictions; run `python -m lms3d.predict"),
        ("lost file", "BraTS20_Training_001.nii.gz: found nothing; expected a label map; predict again"),
        ("truncated", "BraTS20_Training_001.nii.gz: found an unreadable file"),
        ("wrong shape", "found shape (16, 16, 16); expected (26, 30, 22)"),
        ("bad index", "predictions.json: found a file that cannot be used"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(tiny_brats, tmp_path, capsys, kind, says):
    assert evaluate.main([str(broken_folder(tiny_brats, tmp_path, kind)), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_truth_of_another_data_set_is_refused(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "p", 16)
    other = tmp_path / "other"
    shutil.copytree(tiny_brats / "BraTS20_Training_001", other / "BraTS20_Training_009")
    for path in (other / "BraTS20_Training_009").iterdir():
        path.rename(path.with_name(path.name.replace("001", "009")))
    assert evaluate.main([str(tmp_path / "p"), "--truth", str(other)]) == 2
    assert "no label map for any of 4 predicted cases" in capsys.readouterr().err


@pytest.mark.parametrize("whose", ["the prediction", "the truth"])
def test_a_mirrored_label_map_is_refused(tiny_brats, tmp_path, capsys, whose):
    root, case = shutil.copytree(tiny_brats, tmp_path / "set"), "BraTS20_Training_001"
    write_predictions(root, tmp_path / "p", 16)
    path = tmp_path / "p/native" / f"{case}.nii.gz" if whose == "the prediction" else root / case / f"{case}_seg.nii.gz"
    labels, affine = read_labels(path)
    write_labels(labels, affine @ np.diag([-1, 1, 1, 1]), path)
    assert evaluate.main([str(tmp_path / "p"), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"{path.name}: found axes " in error
    assert "as in the images; resample it" in error
    assert error.count("\n") == 1


def test_truth_with_names_of_ones_own_needs_the_labels_that_the_message_asks_for(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "p", 16)
    own = tmp_path / "own"
    shutil.copytree(tiny_brats, own)
    for path in [*own.rglob("*.nii.gz")]:
        path.rename(path.with_name(path.name.replace("BraTS20_Training_", "patient")))
    for folder in own.iterdir():
        folder.rename(own / folder.name.replace("BraTS20_Training_", "patient"))
    index = tmp_path / "p" / "predictions.json"
    index.write_text(index.read_text().replace("BraTS20_Training_", "patient"))
    for path in [*(tmp_path / "p").rglob("BraTS20*")]:
        path.rename(path.with_name(path.name.replace("BraTS20_Training_", "patient")))
    command = [str(tmp_path / "p"), "--truth", str(own), "--output", str(tmp_path / "out")]
    assert evaluate.main(command) == 2
    assert "add --labels with one of" in capsys.readouterr().err
    assert evaluate.main([*command, "--labels", "brats2020"]) == 0
    assert (tmp_path / "out" / "scores.csv").exists()


def test_labels_mean_nothing_to_radiographs(tmp_path, capsys):
    table = tmp_path / "predictions.csv"
    table.write_text("image\n")
    assert evaluate.main([str(table), "--labels", "brats2020"]) == 2
    assert "--labels is for label maps" in capsys.readouterr().err


def test_unknown_option_is_exit_code_2(capsys):
    assert evaluate.main(["somewhere", "--hd96"]) == 2
    assert "--hd96" in capsys.readouterr().err
