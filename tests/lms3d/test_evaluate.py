"""From label maps on disk to tables and box plots."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.image
import nibabel as nib
import numpy as np
import pytest

from lms3d import evaluate
from lms3d.data.brats import layouts
from lms3d.data.brats.definition import define
from lms3d.data.brats.preprocess import Preprocessing
from lms3d.data.brats.schema import SCHEMAS, schema_named
from lms3d.data.volumes.case import load_images, load_truth
from lms3d.data.volumes.geometry import Geometry, foreground_box
from lms3d.data.volumes.preprocess import to_grid
from lms3d.data.volumes.resample import resize
from lms3d.errors import InputError
from lms3d.scoring import components
from lms3d.scoring.rules import RULES
from lms3d.tasks.brats import submission
from lms3d.tasks.volumes import codings, label_maps, report
from lms3d.tasks.volumes.label_maps import Predictions, read_labels, write_labels
from tests.data.small_data import LATE, random_case, write_case

pytestmark = pytest.mark.usefixtures("unrendered")


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
        cube = resize(box.crop(truth), (resolution,) * 3, "nearest")
        write_labels(change(truth), affine, directory / "native" / f"{case.id}.nii.gz")
        cube_to_mm = Geometry.from_json(geometries[case.id]).network_affine((resolution,) * 3)
        write_labels(change(cube), cube_to_mm, directory / "cube" / f"{case.id}.nii.gz")
    Predictions(
        directory=directory, label=directory.name, run=str(directory), model="unet3d", shape=(resolution,) * 3, stretched=True,
        tta=None, data=str(root), fingerprint="", schema="brats2020", cases=geometries,
    ).save()  # fmt: skip


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_perfect_prediction_scores_one_everywhere(rendered, tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "perfect", 48)
    assert evaluate.main([str(tmp_path / "perfect")]) == 0
    scores = rows(tmp_path / "perfect/evaluation/scores.csv")
    assert len(scores) == 4 * 2 * 3
    assert {row["dice"] for row in scores} == {"1.000000"}
    for kind in ("directed", "pooled", "area"):
        assert {row[f"hd95_{kind}_mm"] for row in scores} == {"0.000000", ""}
    assert {row["rules"] for row in scores} == {"brats2017"}
    told = capsys.readouterr().out
    assert "| perfect | native | WT | 4 | 0 | 1.000 ± 0.000 |" in told
    assert "Rules: brats2017 (the default for these labels; --scoring names others)" in told
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
    case = layouts.find_cases(tiny_brats).cases[0]
    truth = load_truth(case, SCHEMAS["brats2020"])
    box = foreground_box(load_images(case)[0])
    small = resize(resize(box.crop(truth), (16,) * 3, "nearest"), (48,) * 3, "nearest") > 0
    large = resize(box.crop(truth), (48,) * 3, "nearest") > 0
    expected = 2 * (small & large).sum() / (small.sum() + large.sum())
    scores = {tuple(row.values())[:4]: row for row in rows(tmp_path / "out/scores.csv")}
    assert float(scores["16", case.id, "cube", "WT"]["dice"]) == pytest.approx(expected, abs=1e-6)


def test_only_shared_cases_are_compared_and_the_rest_is_told(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "a", 16)
    write_predictions(tiny_brats, tmp_path / "b", 16, ids={"BraTS20_Training_002"})
    assert evaluate.main([str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "out")]) == 0
    assert {row["case"] for row in rows(tmp_path / "out/scores.csv")} == {"BraTS20_Training_002"}
    assert "3 predicted cases are left out" in capsys.readouterr().err


def test_the_truth_has_the_labels_of_its_data_set_whatever_the_network_has_learnt(tmp_path):
    """The same numbers mean other tissues for children."""
    case = "BraTS-GLI-00001-000"
    write_case(tmp_path / "set" / case, random_case(1, labels=(1, 2, 3)), LATE)
    write_predictions(tmp_path / "set", tmp_path / "p", 16, lambda labels: np.array([0, 2, 4, 1], np.uint8)[labels])
    content = json.loads((tmp_path / "p" / label_maps.INDEX).read_text())
    content |= {"schema": "brats2024-ped", "schema_of_data": "brats2023"}
    (tmp_path / "p" / label_maps.INDEX).write_text(json.dumps(content))
    assert evaluate.main([str(tmp_path / "p"), "--output", str(tmp_path / "out")]) == 0
    found = [row for row in rows(tmp_path / "out/scores.csv") if row["space"] == "native"]
    assert {row["region"]: row["dice"] for row in found} == dict.fromkeys(("WT", "TC", "ET"), "1.000000")
    assert {row["rules"] for row in found} == {"brats2023-gli"}
    assert evaluate.main([str(tmp_path / "p"), "--submission", str(tmp_path / "up")]) == 0
    written, truth = (
        nib.load(path) for path in (tmp_path / f"up/{case}.nii.gz", tmp_path / "set" / case / f"{case}-seg.nii.gz")
    )
    np.testing.assert_array_equal(np.asarray(written.dataobj), np.asarray(truth.dataobj))


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
        ("empty", "found no predictions.json and no label map"),
        (
            "run",
            "a run without predictions; expected finished predictions, or <case>.nii.gz of any program; run `python -m lms3d",
        ),
        ("lost file", "BraTS20_Training_001.nii.gz: found nothing; expected a label map; predict again"),
        ("truncated", "BraTS20_Training_001.nii.gz: found a file that cannot be read"),
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


def test_a_submission_is_flat_and_has_the_header_of_the_input(tiny_brats, tmp_path, capsys):
    root = shutil.copytree(tiny_brats, tmp_path / "set")
    for path in root.rglob("*_t1.nii.gz"):
        image = nib.load(path)
        image.set_qform(image.affine, 1)
        image.set_sform(image.affine, 4)
        image.header["descrip"] = b"scanner"
        nib.save(image, path)
    write_predictions(root, tmp_path / "p", 16)
    assert evaluate.main([str(tmp_path / "p"), "--submission", str(tmp_path / "up")]) == 0
    assert sorted(path.name for path in (tmp_path / "up").iterdir()) == [
        f"BraTS20_Training_{number:03d}.nii.gz" for number in (1, 2, 3, 4)
    ]
    for path in (tmp_path / "up").iterdir():
        image, like = nib.load(path), nib.load(next(root.rglob(path.name.replace(".nii", "_t1.nii"))))
        assert image.get_data_dtype() == like.get_data_dtype() == np.int16
        assert (int(image.header["qform_code"]), int(image.header["sform_code"])) == (1, 4)
        assert not image.header["descrip"].item()  # what a scanner has written there may be about a patient
        np.testing.assert_array_equal(image.affine, like.affine)
        truth = nib.load(next(root.rglob(path.name.replace(".nii", "_seg.nii"))))
        np.testing.assert_array_equal(np.asarray(image.dataobj), np.asarray(truth.dataobj))
    # It is itself a folder that can be scored.
    assert evaluate.main([str(tmp_path / "up"), "--truth", str(root), "--output", str(tmp_path / "out")]) == 0
    assert {row["dice"] for row in rows(tmp_path / "out/scores.csv")} == {"1.000000"}
    assert evaluate.main([str(tmp_path / "p"), str(tmp_path / "p"), "--submission", str(tmp_path / "up")]) == 2
    assert "--submission: found several predictions" in capsys.readouterr().err


def test_a_submission_has_no_label_that_the_data_set_does_not_know():
    ours, theirs = schema_named("brats2024"), schema_named("brats2021")
    assert submission._translated(np.array([0, 1, 2, 3]), ours, theirs).tolist() == [0, 1, 2, 4]
    with pytest.raises(
        InputError, match="brats2021, which the data set has, knows no label for RC; train on labels of brats2021"
    ):
        submission._translated(np.array([4]), ours, theirs)


def test_the_picture_of_a_case_shows_the_regions_that_both_sides_have(tiny_brats, tmp_path):
    """A network of one's own labels may know the whole tumour alone."""
    found = layouts.find_cases(tiny_brats)
    case = found.cases[0]
    own = define({"labels": {"all": 1}, "regions": {"WT": ["all"]}}, where="here")
    image = nib.load(case.truth)
    whole = nib.Nifti1Image((np.asarray(image.dataobj) > 0).astype(np.uint8), image.affine)
    nib.save(whole, tmp_path / "whole.nii.gz")
    source = SimpleNamespace(native=tmp_path / "whole.nii.gz", coding=own)
    plan = SimpleNamespace(schema=found.schema, channel="flair", drawn=("WT", "TC", "ET"))
    tile = report._tile(SimpleNamespace(case=case), source, plan, "a case")
    assert list(tile.truth) == list(tile.prediction) == ["WT"]
    assert tile.slice == image.shape[2] // 2  # nothing differs


def test_two_tissues_that_are_one_since_are_both_meant():
    own = define(
        {"labels": {"NCR": 1, "ED": 2, "NET": 3, "ET": 4}, "regions": {"WT": ["NCR", "ED", "NET", "ET"]}}, where="here"
    )
    assert codings.values_of(own, "NETC") == (1, 3)


def test_what_the_labels_do_not_have_joins_no_lesions_and_the_tables_say_so(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "p", 16)
    said = "RC of brats2024-gli left out, and no lesions are joined because they touch RC: the labels of brats2020 do not have them"
    assert evaluate.main([str(tmp_path / "p"), "--scoring", "brats2024", "--output", str(tmp_path / "out")]) == 0
    assert f"note: {said}" in capsys.readouterr().err
    assert said in (tmp_path / "out/summary.md").read_text()
    assert said in (tmp_path / "out/report.html").read_text()
    masks = {"ET": np.zeros((9, 9, 9), bool), "NETC": np.zeros((9, 9, 9), bool)}
    masks["ET"][0, :, 4], masks["ET"][8, :, 4], masks["NETC"][1:8, 4, 4] = True, True, True
    with_rc = masks | {"RC": np.zeros((9, 9, 9), bool)}
    for predicted in (False, True):
        one, other = (
            components.lesions(given, RULES["brats2024-gli"], predicted=predicted) for given in (masks, with_rc)
        )
        for region in masks:
            np.testing.assert_array_equal(one[region], other[region])


def test_the_ceiling_is_what_a_perfect_network_of_the_resolution_has(tiny_brats, tmp_path):
    write_predictions(tiny_brats, tmp_path / "16", 16)
    write_predictions(tiny_brats, tmp_path / "48", 48)
    assert evaluate.main([str(tmp_path / "16"), str(tmp_path / "48"), "--output", str(tmp_path / "out")]) == 0
    found = {tuple(row.values())[:4]: row for row in rows(tmp_path / "out/scores.csv")}
    case = layouts.find_cases(tiny_brats).cases[0]
    truth = load_truth(case, SCHEMAS["brats2020"])
    box = foreground_box(load_images(case)[0])
    channels = resize(box.crop(truth), (16,) * 3, "nearest")[..., None] == (1, 2, 4)
    inside = resize(channels.astype(np.float32), box.shape)  # linear, as probabilities
    back = box.place(inside.max(axis=-1) >= 0.5, truth.shape)
    expected = 2 * ((back > 0) & (truth > 0)).sum() / ((back > 0).sum() + (truth > 0).sum())
    assert float(found["16", case.id, "native", "WT"]["ceiling_dice"]) == pytest.approx(expected, abs=1e-6)
    assert found["48", case.id, "cube", "WT"]["ceiling_dice"] == "1.000000"
    cube = found["16", case.id, "cube", "WT"]
    assert cube["ceiling_dice"] == cube["dice"]  # a perfect cube of 16, enlarged
    assert cube["ceiling_hd95_area_mm"] == ""  # voxels of a cube are no millimetres
    told = (tmp_path / "out/summary.md").read_text()
    assert "| ceiling |" in told
    assert "| sensitivity (ceiling) |" in told
    (metric,) = [
        row for row in rows(tmp_path / "out/metrics.csv")
        if tuple(row.values())[:5] == ("16", "native", "WT", "hd95_area_mm", "rules")
    ]  # fmt: skip
    mean = np.mean(
        [
            float(row["ceiling_hd95_area_mm"])
            for key, row in found.items()
            if (key[0], *key[2:]) == ("16", "native", "WT")
        ]
    )
    assert float(metric["ceiling"]) == pytest.approx(mean, abs=1e-6)
    assert float(metric["ceiling"]) > 0
    (summary,) = [
        row for row in rows(tmp_path / "out/summary.csv") if tuple(row.values())[:3] == ("16", "native", "WT")
    ]
    assert summary["mean_ceiling_hd95_area_mm"] == metric["ceiling"]
    shown = f"{float(summary['mean_hd95_area_mm']):.1f} ({float(metric['ceiling']):.1f})"
    assert any(shown in line for line in told.splitlines() if line.startswith("| 16 | native | WT |"))


def test_a_box_is_compared_with_a_cube_on_the_files_grid_alone_each_below_its_own_ceiling(tiny_brats, tmp_path):
    write_predictions(tiny_brats, tmp_path / "16", 16)
    write_predictions(tiny_brats, tmp_path / "box", 16)
    index = label_maps.load(tmp_path / "box")
    how = Preprocessing(shape=(64, 64, 64), stretched=False)  # 2 x 2 x 3 mm become 1 mm: nothing is lost
    geometries = {}
    for case in layouts.find_cases(tiny_brats).cases:
        images, affine = load_images(case)
        geometries[case.id] = to_grid(images, None, affine, how)[2].to_json()
    replace(index, shape=how.shape, stretched=False, cases=geometries).save()
    assert evaluate.main([str(tmp_path / "16"), str(tmp_path / "box"), "--output", str(tmp_path / "out")]) == 0
    found = rows(tmp_path / "out/scores.csv")
    assert {row["space"] for row in found} == {"native"}
    ceilings = {(row["predictions"], row["region"]): float(row["ceiling_dice"]) for row in found}
    assert all(ceilings["box", region] > ceilings["16", region] for region in ("WT", "TC"))
    assert evaluate.main([str(tmp_path / "box"), "--output", str(tmp_path / "alone")]) == 0
    assert {row["space"] for row in rows(tmp_path / "alone/scores.csv")} == {"native", "cube"}
