"""Anyone's label maps: matched by name, laid on the truth's grid, checked, and scored by a challenge's rules."""

from __future__ import annotations

import csv
import shutil

import nibabel as nib
import numpy as np
import pytest

from lms3d import evaluate
from lms3d.data.brats import layouts
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.errors import DataError
from lms3d.data.volumes.case import load_truth
from lms3d.data.volumes.geometry import Box, Geometry
from lms3d.errors import InputError
from lms3d.tasks.brats import inputs
from lms3d.tasks.volumes import inputs as volume_inputs
from lms3d.tasks.volumes import label_maps, plain_folders, plain_maps
from lms3d.tasks.volumes.label_maps import Predictions
from lms3d.tasks.volumes.plain_folders import PlainFolder
from tests.lms3d.scoring.golden import pairs

pytestmark = pytest.mark.usefixtures("unrendered")

TO_NNUNET = np.array([0, 2, 1, 0, 3], np.uint8)  # oedema first


def truths(root):
    """(case id, label map, affine) of the tiny data set."""
    cases, schema = layouts.find_cases(root)
    for case in cases:
        yield case.id, load_truth(case, schema), nib.load(case.truth).affine


def write(root, folder, name="{case}.nii.gz", change=lambda labels: labels):
    for case, labels, affine in truths(root):
        path = folder / name.format(case=case, number=case[-3:])
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(change(labels), affine), path)


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def run(root, tmp_path, *more):
    return evaluate.main([str(tmp_path / "p"), "--truth", str(root), "--output", str(tmp_path / "out"), *more])


@pytest.mark.parametrize(
    "name",
    [
        "{case}.nii.gz",
        "{case}_seg.nii.gz",
        "{case}/{case}_seg.nii.gz",
        "{case}/labels.nii",
        "{case}_seg.nii/00000057_final_seg.nii",
        "team_x_{number}.nii.gz",
    ],
)
def test_files_are_matched_to_cases_by_name(tiny_brats, tmp_path, name):
    write(tiny_brats, tmp_path / "p", name)
    assert run(tiny_brats, tmp_path) == 0
    found = rows(tmp_path / "out/scores.csv")
    assert len(found) == 4 * 3
    assert {(row["dice"], row["space"], row["predictions"]) for row in found} == {("1.000000", "native", "p")}
    assert not (tmp_path / "out/dice_cube.png").exists()


def folder_of(*names):
    from pathlib import Path

    root = Path("/somewhere")
    return PlainFolder(directory=root, label="x", files=tuple(root / name for name in names))


def test_the_longest_id_wins_and_what_could_be_two_is_refused():
    cases = ["BraTS-GLI-00001-000", "BraTS-GLI-00001-0001", "Brats17_A", "Brats17_A_1"]
    found = folder_of("x_Brats17_A_1.nii.gz", "BraTS-GLI-00001-000.nii.gz", "other.nii.gz").matched(cases)
    assert {case: path.name for case, path in found.items()} == {
        "Brats17_A_1": "x_Brats17_A_1.nii.gz", "BraTS-GLI-00001-000": "BraTS-GLI-00001-000.nii.gz",
    }  # fmt: skip
    assert folder_of("00001-0001.nii.gz").matched(cases).keys() == {"BraTS-GLI-00001-0001"}
    assert not folder_of("00001-000.nii.gz").matched(["BraTS-GLI-00001-000", "BraTS-MET-00001-000"])
    with pytest.raises(InputError, match=r"b\.nii: found a second file of case case1, beside a_case1\.nii"):
        folder_of("a_case1.nii", "case1/b.nii").matched(["case1"])
    with pytest.raises(InputError, match="found a name that fits cases case1 and case2"):
        folder_of("case1_case2.nii").matched(["case1", "case2"])


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("BraTS20_Validation_001", "BraTS20_Training_001"),
        ("BraTS-GLI-00005-000", "BraTS-SSA-00005-000"),
        ("BRATS_001", "BraTS20_Training_001"),
        ("Brats18_CBICA_AAM_1", "Brats18_CBICA_AAB_1"),
        ("TCGA-02-0006", "TCGA-08-0006"),
        ("x_pred_2", "Brats18_CBICA_AAC_2"),
    ],
)
def test_another_case_with_the_same_number_is_not_meant(name, case):
    """Grids of BraTS are all alike: the scores would be another brain's."""
    assert folder_of(f"{name}.nii.gz").matched([case]) == {}


def test_hidden_files_are_no_predictions(tmp_path):
    (tmp_path / "._a.nii.gz").touch()
    (tmp_path / "a.nii.gz.txt").touch()
    for folder in (".Trash-1000/files", "__MACOSX/p"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.nii.gz").touch()
    assert plain_folders.load(tmp_path) is None


def test_a_second_file_of_a_case_is_named_with_its_folder(tmp_path):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.nii.gz").touch()
    with pytest.raises(InputError, match=r"second/a.nii.gz: found a second file of case a, beside first/a.nii.gz;"):
        plain_folders.load(tmp_path).matched(["a"])


def test_two_truths_of_one_case_are_refused(tiny_brats, tmp_path, capsys):
    """Once the last one counted, in silence."""
    write(tiny_brats, tmp_path / "p")
    for folder in ("reader1", "reader2"):
        write(tiny_brats, tmp_path / "truth" / folder)
    for more in ([], ["--labels", "brats2020"]):
        assert run(tmp_path / "truth", tmp_path, *more) == 2
        assert (
            "reader2/BraTS20_Training_001.nii.gz: found a second label map of case BraTS20_Training_001, beside "
            "reader1/BraTS20_Training_001.nii.gz" in capsys.readouterr().err
        )


@pytest.mark.parametrize("more", [[], ["--labels", "brats2020"]])
def test_truths_of_one_name_are_called_by_their_folders(tiny_brats, tmp_path, more):
    write(tiny_brats, tmp_path / "p")
    write(tiny_brats, tmp_path / "truth", "{case}/seg.nii.gz")
    assert run(tmp_path / "truth", tmp_path, *more) == 0
    found = rows(tmp_path / "out/scores.csv")
    assert {row["case"] for row in found} == {case for case, _, _ in truths(tiny_brats)}
    assert {row["dice"] for row in found} - {""} == {"1.000000"}  # "" for a label that neither map has


@pytest.mark.parametrize(
    "name", ["a1/x/seg.nii.gz b1/x/seg.nii.gz", "a1/seg.nii.gz seg.nii.gz", "a1/case_1.nii.gz b1/case_1.nii.gz"]
)
def test_folders_that_tell_no_cases_apart_do_not_name_them(tmp_path, name):
    for path in name.split():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    with pytest.raises(InputError, match=r"found a second label map of case (x|seg|case_1), beside"):
        volume_inputs.label_maps_alone(str(tmp_path))


def test_another_coding_is_named(tiny_brats, tmp_path, capsys):
    write(tiny_brats, tmp_path / "p", change=lambda labels: TO_NNUNET[labels])
    assert run(tiny_brats, tmp_path) == 2
    error = capsys.readouterr().err
    assert "found label 3; expected only 0, 1, 2, 4 (labels of brats2020); name the coding of the predictions" in error
    assert error.count("\n") == 1
    assert run(tiny_brats, tmp_path, "--prediction-labels", "unknown") == 2
    assert "--prediction-labels: found 'unknown'; expected nnunet or one of tcia, brats2017" in capsys.readouterr().err
    assert run(tiny_brats, tmp_path, "--prediction-labels", "nnunet") == 0
    assert {row["dice"] for row in rows(tmp_path / "out/scores.csv")} == {"1.000000"}


@pytest.mark.parametrize("order", ["mirrored", "swapped"])
def test_the_same_grid_in_another_order_is_put_in_order(tiny_brats, tmp_path, order):
    for case, labels, affine in truths(tiny_brats):
        image = nib.Nifti1Image(labels, affine)
        own = nib.orientations.io_orientation(affine)
        if order == "mirrored":
            own[0, 1] *= -1
        else:
            own = own[[1, 0, 2]]
        wanted = nib.orientations.ornt_transform(nib.orientations.io_orientation(affine), own)
        (tmp_path / "p").mkdir(exist_ok=True)
        nib.save(image.as_reoriented(wanted), tmp_path / "p" / f"{case}.nii.gz")
    assert run(tiny_brats, tmp_path) == 0
    assert {row["dice"] for row in rows(tmp_path / "out/scores.csv")} == {"1.000000"}


def damage(kind, path):
    labels, affine = np.asarray(nib.load(path).dataobj), nib.load(path).affine
    if kind == "mirrored header":
        nib.save(nib.Nifti1Image(labels, affine @ np.diag([-1, 1, 1, 1])), path)
    if kind == "spacing":
        nib.save(nib.Nifti1Image(labels, affine @ np.diag([2, 2, 2, 1])), path)
    if kind == "shape":
        nib.save(nib.Nifti1Image(labels[:-1], affine), path)
    if kind == "probabilities":
        nib.save(nib.Nifti1Image(labels * np.float32(0.3), affine), path)
    if kind == "complex":
        nib.save(nib.Nifti1Image(labels.astype(np.complex64), affine), path)
    if kind == "colours":
        rgb = np.zeros(labels.shape, np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")]))
        nib.save(nib.Nifti1Image(rgb, affine), path)
    if kind == "text":
        path.write_text("no image")
    if kind == "twice":
        shutil.copy(path, path.with_name(f"{path.name.removesuffix('.nii.gz')}_pp.nii.gz"))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("mirrored header", "as in"),
        ("spacing", "resample it to that grid"),
        ("shape", "found shape 25x30x22; expected 26x30x22"),
        ("probabilities", "found values that are no whole numbers"),
        ("complex", "found voxels that are complex64 numbers; expected a NIfTI label map"),
        ("colours", "found voxels that are colours (RGB); expected a NIfTI label map"),
        ("text", "found a file that cannot be read"),
        ("twice", "found a second file of case BraTS20_Training_002"),
    ],
)
def test_what_cannot_be_scored_is_one_line(tiny_brats, tmp_path, capsys, kind, says):
    write(tiny_brats, tmp_path / "p")
    damage(kind, tmp_path / "p/BraTS20_Training_002.nii.gz")
    assert run(tiny_brats, tmp_path) == 2
    error = capsys.readouterr().err
    assert "BraTS20_Training_002" in error
    assert says in error
    assert error.count("\n") == 1


def test_almost_whole_numbers_are_labels(tiny_brats, tmp_path):
    write(tiny_brats, tmp_path / "p", change=lambda labels: labels * np.float32(0.9999999))
    assert run(tiny_brats, tmp_path) == 0
    assert {row["dice"] for row in rows(tmp_path / "out/scores.csv")} == {"1.000000"}


def test_the_truth_must_be_named(tiny_brats, tmp_path, capsys):
    write(tiny_brats, tmp_path / "p")
    assert evaluate.main([str(tmp_path / "p")]) == 2
    assert "--truth: found none" in capsys.readouterr().err
    write(tiny_brats, tmp_path / "q", "prediction_of_nobody_{number}x.nii.gz")
    assert evaluate.main([str(tmp_path / "q"), "--truth", str(tiny_brats)]) == 2
    assert "found a name with none of 4 cases in it" in capsys.readouterr().err
    assert evaluate.main([]) == 2
    assert "PREDICTIONS: found none" in capsys.readouterr().err


def test_a_truth_of_label_maps_alone_is_scored_by_value_or_by_the_coding_that_is_named(tiny_brats, tmp_path, capsys):
    write(tiny_brats, tmp_path / "labelsTr", "{case}_seg.nii.gz")
    write(tiny_brats, tmp_path / "p")
    assert run(tmp_path / "labelsTr", tmp_path) == 0
    assert {row["region"] for row in rows(tmp_path / "out/scores.csv")} == {"1", "2", "4"}
    assert (
        "labels are called by their values; of brain tumours --labels says what these mean" in capsys.readouterr().err
    )
    assert run(tmp_path / "labelsTr", tmp_path, "--labels", "brats2020") == 0
    assert {row["dice"] for row in rows(tmp_path / "out/scores.csv")} == {"1.000000"}
    assert not (tmp_path / "out/worst.png").exists()  # there are no images to show


def test_images_are_never_taken_for_the_truth(tiny_brats, tmp_path, capsys):
    """With an image missing, the folder still is a data set, not label maps alone."""
    write(tiny_brats, tmp_path / "p")
    shutil.copytree(tiny_brats, tmp_path / "set")
    (missing,) = (tmp_path / "set").glob("*_002/*_t1ce.nii.gz")
    missing.unlink()
    assert run(tmp_path / "set", tmp_path, "--labels", "brats2020") == 0
    assert "note: no picture of BraTS20_Training_002" in capsys.readouterr().out  # scoring needs its truth alone
    assert {row["dice"] for row in rows(tmp_path / "out/scores.csv")} == {"1.000000"}
    assert (tmp_path / "out/report.html").exists()


def test_a_missing_case_is_told_and_under_the_rules_of_2026_it_costs(tiny_brats, tmp_path, capsys):
    write(tiny_brats, tmp_path / "p")
    (tmp_path / "p/BraTS20_Training_003.nii.gz").unlink()
    assert run(tiny_brats, tmp_path) == 0
    assert "1 case of the truth has no prediction and is left out: BraTS20_Training_003" in capsys.readouterr().err
    assert len(rows(tmp_path / "out/scores.csv")) == 3 * 3
    assert run(tiny_brats, tmp_path, "--scoring", "brats2026") == 0
    told = capsys.readouterr()
    assert "scored 0 and 373 mm, as brats2026-gli says" in told.err
    assert "Rules: brats2026-gli (--scoring)" in told.out
    lost = [row for row in rows(tmp_path / "out/scores.csv") if row["case"].endswith("003")]
    assert {(row["dice"], row["hd95_pooled_mm"], row["lesion_f1"]) for row in lost} == {
        ("0.000000", "373.000000", "0.000000")
    }


def test_rules_that_do_not_exist_are_named(tiny_brats, tmp_path, capsys):
    write(tiny_brats, tmp_path / "p")
    assert run(tiny_brats, tmp_path, "--scoring", "brats2022") == 2
    assert "--scoring: found 'brats2022'; expected one of brats2017, brats2023" in capsys.readouterr().err


def placed(tmp_path, affine, *more):
    """The scores of one case whose files have that header: a block, moved by a voxel, and one of exactly 20 mm³ at 1 mm."""
    truth, prediction = np.zeros((24, 24, 24), np.uint8), np.zeros((24, 24, 24), np.uint8)
    truth[3:12, 3:12, 3:12] = prediction[4:13, 3:12, 3:12] = 3
    truth[18:20, 16:18, 15:20] = prediction[18:20, 16:18, 15:20] = 1
    for folder, labels in (("t", truth), ("p", prediction)):
        (tmp_path / folder).mkdir(exist_ok=True)
        nib.save(nib.Nifti1Image(labels, affine), tmp_path / folder / "BraTS-GLI-00001-000.nii.gz")
    assert run(tmp_path / "t", tmp_path, "--labels", "brats2024", *more) == 0
    return rows(tmp_path / "out/scores.csv")


def test_scores_of_files_do_not_hang_on_the_rotation_in_the_header(tmp_path):
    """The sizes that these two headers' float32 rotations say are 0.99999997 and 1.0000001 mm."""
    found = []
    for degrees in ((0, 0, 0), (12, 25, -7), (140, -60, 33)):
        affine = np.eye(4)
        affine[:3, :3] = pairs.rotation(*degrees)
        found.append(placed(tmp_path, affine, "--scoring", "brats2025"))
    assert found[0] == found[1] == found[2]
    assert {row["region"]: row["lesions_found"] for row in found[0]}["NETC"] == "0.000000"  # 20 mm³ are dropped


def test_physical_rules_are_a_choice_of_the_command(tmp_path, capsys):
    coarse = np.diag([2.0, 2.0, 5.0, 1.0])
    of_script = placed(tmp_path, coarse, "--scoring", "brats2026-met")
    assert "measures pooled HD95 and counted NSD in voxels, and exchanges" in capsys.readouterr().out
    physical = placed(tmp_path, coarse, "--scoring", "brats2026-met-physical")
    assert "If voxels are not 1 mm" not in capsys.readouterr().out
    hd95 = [{row["region"]: row["hd95_pooled_mm"] for row in one}["ET"] for one in (of_script, physical)]
    assert hd95 == ["1.000000", "2.000000"]
    assert {row["rules"] for row in physical} == {"brats2026-met-physical"}
    assert {row["rules"] for row in placed(tmp_path, coarse, "--scoring", "physical")} == {"brats2024-gli-physical"}


def test_cases_of_a_set_without_a_script_and_of_several_sets_are_scored_and_told(tmp_path, capsys):
    for cases, rules, note in (
        (["BraTS-GoAT-00001"], "brats2026-goat", "no script for cases called GOAT: brats2026-goat scores them"),
        (["BraTS-GoAT-00001", "BraTS-GLI-00001-000"], "brats2023-gli", "several sets (GLI, GOAT)"),
    ):
        for file in [tmp_path / folder / f"{case}.nii.gz" for case in cases for folder in "tp"]:
            file.parent.mkdir(exist_ok=True)
            nib.save(nib.Nifti1Image(np.pad(np.full((5, 5, 5), 3, np.uint8), 5), np.eye(4)), file)
        assert run(tmp_path / "t", tmp_path, "--labels", "brats2023") == 0
        told = capsys.readouterr()
        assert note in told.err
        assert note in told.out
        assert {row["rules"] for row in rows(tmp_path / "out/scores.csv")} == {rules}


def test_lesions_are_in_the_tables_of_2023(tiny_brats, tmp_path, capsys):
    write(tiny_brats, tmp_path / "p")
    assert run(tiny_brats, tmp_path, "--scoring", "brats2023") == 0
    told = capsys.readouterr().out
    assert all(f"| {title} |" in told for title in ("lesion-wise Dice", "lesion-wise HD95 mm", "lesion F1"))
    assert {row["lesion_f1"] for row in rows(tmp_path / "out/scores.csv")} == {"1.000000"}


@pytest.mark.slow
def test_many_cases_are_scored_by_several_processes(tiny_brats, tmp_path, monkeypatch, capsys):
    from lms3d.tasks.volumes import evaluate as of_volumes

    write(tiny_brats, tmp_path / "p", change=lambda labels: np.where(labels == 4, 1, labels))
    assert run(tiny_brats, tmp_path) == 0
    alone = (tmp_path / "out/scores.csv").read_bytes()
    monkeypatch.setattr(of_volumes, "_FEW", 0)
    monkeypatch.setattr(of_volumes, "worker_count", lambda items, workers: 2)
    assert run(tiny_brats, tmp_path) == 0
    assert (tmp_path / "out/scores.csv").read_bytes() == alone
    capsys.readouterr()
    damage("shape", tmp_path / "p/BraTS20_Training_003.nii.gz")  # an error of a worker is one line, too
    assert run(tiny_brats, tmp_path) == 2
    error = capsys.readouterr().err
    assert "BraTS20_Training_003.nii.gz: found shape 25x30x22" in error
    assert error.count("\n") == 1


# -- label maps without an affine, or under a scaled header


def saved(path, labels, affine, dtype=None):
    image = nib.Nifti1Image(labels if dtype is None else labels.astype(float), affine)
    if dtype is not None:
        image.set_data_dtype(dtype)
    nib.save(image, path)
    return path


def read(path, truth, **options):
    _, labels, affine = truth
    return plain_maps.read(path, SCHEMAS["brats2020"], labels.shape, affine, like="the truth", **options)


def test_a_label_map_saved_without_an_affine_matches_voxel_by_voxel(tiny_brats, tmp_path, caplog):
    truth = _, labels, _ = next(truths(tiny_brats))
    np.testing.assert_array_equal(read(saved(tmp_path / "a.nii.gz", labels, None), truth), labels)
    assert "no orientation in its header" in caplog.text
    with pytest.raises(DataError, match="expected axes LPS, voxels of 2 x 2 x 3 mm"):
        read(saved(tmp_path / "b.nii.gz", labels, np.eye(4)), truth)  # says something else
    np.testing.assert_array_equal(read(tmp_path / "b.nii.gz", truth, like_oriented=False), labels)
    with pytest.raises(InputError, match="found shape"):
        read(saved(tmp_path / "c.nii.gz", labels[:-1], None), truth)


def test_labels_under_a_scaled_header_are_those_meant(tiny_brats, tmp_path):
    truth = _, labels, affine = next(truths(tiny_brats))
    path = saved(tmp_path / "a.nii.gz", labels, affine, np.uint8)
    np.testing.assert_array_equal(read(path, truth), labels)
    np.testing.assert_array_equal(label_maps.read_labels(path)[0], labels)
    with pytest.raises(InputError, match=r"its header scales them: scl_slope 0.0156863"):
        read(saved(tmp_path / "b.nii.gz", np.where(labels == 2, 1.5, labels), affine, np.uint8), truth)


def test_cases_that_could_not_be_predicted_are_named(tiny_brats, tmp_path, capsys):
    cases, schema = layouts.find_cases(tiny_brats)
    grids = {case.id: Geometry(shape=(2, 2, 2), affine=tuple(map(tuple, np.eye(4))), box=Box(lower=(0, 0, 0), upper=(2, 2, 2)))
             for case in cases[1:]}  # fmt: skip
    predictions = Predictions(
        directory=tmp_path, label="p", run="r", model="m", shape=(16, 16, 16), stretched=True, tta=None, data=str(tiny_brats),
        fingerprint="", schema=schema.name, cases={name: grid.to_json() for name, grid in grids.items()}, left_out=[cases[0].id],
    )  # fmt: skip
    predictions.save()
    assert label_maps.load(tmp_path).left_out == [cases[0].id]
    plan = inputs.plan([label_maps.load(tmp_path)])
    assert len(plan.jobs) == len(cases) - 1
    assert (
        f"note: 1 case could not be predicted, because of files that cannot be used: {cases[0].id}"
        in capsys.readouterr().err
    )
