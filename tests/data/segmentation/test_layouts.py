"""Data sets as nnU-Net and the Decathlon have them, found without a word of configuration."""

import json
import shutil

import numpy as np
import pytest

from lms3d.data.errors import DataError, NoCaseError
from lms3d.data.segmentation import layouts
from lms3d.data.volumes.case import load_images, load_truth
from tests.data.small_data import save
from tests.data.small_volumes import CT, affine, described, images_of, labels_of, write_nnunet

DECATHLON = {
    "Task01_BrainTumour": (
        "BRATS_001",
        ["FLAIR", "T1w", "t1gd", "T2w"],
        ["edema", "non-enhancing tumor", "enhancing tumour"],
    ),
    "Task02_Heart": ("la_003", ["MRI"], ["left atrium"]),
    "Task03_Liver": ("liver_0", ["CT"], ["liver", "cancer"]),
    "Task04_Hippocampus": ("hippocampus_001", ["MRI"], ["Anterior", "Posterior"]),
    "Task05_Prostate": ("prostate_00", ["T2", "ADC"], ["PZ", "TZ"]),
    "Task06_Lung": ("lung_001", ["CT"], ["cancer"]),
    "Task07_Pancreas": ("pancreas_001", ["CT"], ["pancreas", "cancer"]),
    "Task08_HepaticVessel": ("hepaticvessel_001", ["CT"], ["Vessel", "Tumour"]),
    "Task09_Spleen": ("spleen_2", ["CT"], ["spleen"]),
    "Task10_Colon": ("colon_001", ["CT"], ["colon cancer primaries"]),
}
"""Task -> (a case, channels, labels), as its dataset.json has them."""


def write_decathlon(root, task):
    stem, channels, labels = DECATHLON[task]
    images = images_of(0, len(channels))
    save(images if len(channels) > 1 else images[..., 0], root / task / "imagesTr" / f"{stem}.nii.gz", affine())
    save(labels_of(range(1, len(labels) + 1)), root / task / "labelsTr" / f"{stem}.nii.gz", affine())
    save(images if len(channels) > 1 else images[..., 0], root / task / "imagesTs" / "test_7.nii.gz", affine())
    (root / task / "imagesTr" / f"._{stem}.nii.gz").write_bytes(b"junk of an operating system")
    return described(root / task, {
        "name": task, "modality": {str(i): name for i, name in enumerate(channels)},
        "labels": {"0": "background", **{str(i): name for i, name in enumerate(labels, start=1)}},
        "training": [{"image": f"./imagesTr/{stem}.nii.gz", "label": f"./labelsTr/{stem}.nii.gz"}],
        "test": ["./imagesTs/test_7.nii.gz"],
    })  # fmt: skip


@pytest.mark.parametrize("task", DECATHLON)
def test_the_ten_tasks_of_the_decathlon(tmp_path, task):
    stem, channels, labels = DECATHLON[task]
    found = layouts.find(write_decathlon(tmp_path, task))
    assert found.description.channels == tuple(channels)
    assert dict(found.description.schema.labels) == {name: i for i, name in enumerate(labels, start=1)}
    (case,) = found.data_set.cases
    assert case.id == stem
    images, _ = load_images(case)
    np.testing.assert_array_equal(images, images_of(0, len(channels)))
    truth = load_truth(case, found.data_set.schema)
    np.testing.assert_array_equal(truth, labels_of(range(1, len(labels) + 1)))
    assert [case.id for case in layouts.find(tmp_path / task, part="test", require_truth=False).data_set.cases] == [
        "test_7"
    ]


def test_a_raw_folder_of_nnunet(tmp_path):
    root = write_nnunet(tmp_path / "Dataset007_X", {**CT, "channel_names": {"0": "CT", "1": "PET"}})
    found = layouts.find(root)
    assert [case.id for case in found.data_set.cases] == ["case_0", "case_1", "case_2"]
    assert found.description.channels == ("CT", "PET")
    images, grid = load_images(found.data_set.cases[1])
    np.testing.assert_array_equal(images, images_of(1, 2))
    np.testing.assert_array_equal(grid, affine())
    assert found.description.targets.names == ("background", "liver", "spleen")


def test_cases_whose_names_end_like_channels(tmp_path):
    """case_0000 is a case if its label map is called so, not a channel of "case"."""
    for case in ("case_0000", "case_0001"):
        save(images_of(0, 1)[..., 0], tmp_path / "imagesTr" / f"{case}.nii.gz", affine())
        save(labels_of((1, 2)), tmp_path / "labelsTr" / f"{case}.nii.gz", affine())
    found = layouts.find(described(tmp_path, CT)).data_set
    assert [case.id for case in found.cases] == ["case_0000", "case_0001"]
    assert not found.unused


@pytest.mark.parametrize("where", ["above", "imagesTr"])
def test_the_folder_above_or_below_may_be_given(tmp_path, where):
    root = write_nnunet(tmp_path / "archive" / "Dataset007_X")
    (tmp_path / "__MACOSX").mkdir()
    shutil.copytree(root, tmp_path / "__MACOSX" / "Dataset007_X")
    assert len(layouts.find(tmp_path if where == "above" else root / where).data_set.cases) == 3


def test_two_data_sets_are_told_apart(tmp_path):
    write_nnunet(tmp_path / "a", cases=1), write_nnunet(tmp_path / "b", cases=1)
    with pytest.raises(DataError, match=r"found 2 data sets \(a, b\); expected one"):
        layouts.find(tmp_path)


def test_a_list_of_files_in_dataset_json(tmp_path):
    write_nnunet(tmp_path / "files", cases=1)
    listed = {"k1": {"images": ["../files/imagesTr/case_0_0000.nii.gz"], "label": "../files/labelsTr/case_0.nii.gz"}}
    (case,) = layouts.find(described(tmp_path / "Dataset008_Y", {**CT, "dataset": listed})).data_set.cases
    assert case.id == "k1"
    assert load_images(case)[0].shape == (20, 16, 12, 1)
    listed["k1"]["images"] *= 2
    with pytest.raises(DataError, match=r"dataset.json: found case k1 with 2 images; expected 1: CT"):
        layouts.find(described(tmp_path / "Dataset008_Y", {**CT, "dataset": listed}))


@pytest.mark.parametrize("name", ["../../pwned", "a/b", "", " ", "..", ".hidden", "a\nb", "a\0b", "a\\b", "x" * 181])
def test_an_id_that_would_lie_elsewhere_or_names_no_file_is_refused(tmp_path, name):
    """Cases that dataset.json lists: their ids are no names of files yet, but become such."""
    write_nnunet(tmp_path / "files", cases=1)
    listed = {name: {"images": ["../files/imagesTr/case_0_0000.nii.gz"], "label": "../files/labelsTr/case_0.nii.gz"}}
    root = described(tmp_path / "Dataset008_Y", {**CT, "dataset": listed})
    with pytest.raises(DataError, match=r"dataset.json: found case '.*'; expected an id that can name a file"):
        layouts.find(root)


def test_a_file_whose_name_is_no_id_is_named(tmp_path):
    root = write_nnunet(tmp_path, cases=1)
    for path in (root / "imagesTr" / "case_0_0000.nii.gz", root / "labelsTr" / "case_0.nii.gz"):
        path.rename(path.with_name(path.name.replace("case", "ca\nse")))
    with pytest.raises(DataError, match=r"found case 'ca\\nse_0_0000'; expected an id that can name a file"):
        layouts.find(root)


def test_a_case_without_one_of_its_channels_is_one_cases_problem(tmp_path):
    root = write_nnunet(tmp_path, {**CT, "channel_names": {"0": "CT", "1": "PET"}})
    (root / "imagesTr" / "case_1_0001.nii.gz").unlink()
    cases = layouts.find(root).data_set.cases
    assert [bool(case.problem) for case in cases] == [False, True, False]
    assert "found no channel 1 (PET); expected case_1_0001.nii.gz" in cases[1].problem


def test_images_alone_are_found_like_a_known_data_set(tmp_path):
    like = layouts.find(write_nnunet(tmp_path / "known")).description
    shutil.copytree(tmp_path / "known" / "imagesTr", tmp_path / "new")
    assert len(layouts.find(tmp_path / "new", like=like, require_truth=False).data_set.cases) == 3
    with pytest.raises(NoCaseError, match=r"found no dataset.json"):
        layouts.find(tmp_path / "new")


def test_a_label_map_that_is_missing_is_named(tmp_path):
    root = write_nnunet(tmp_path)
    (root / "labelsTr" / "case_2.nii.gz").unlink()
    problems = [case.problem for case in layouts.find(root).data_set.cases]
    assert problems[:2] == ["", ""]
    assert "case_2_0000.nii.gz: found no label map of case case_2 (1 of 3 cases have none); expected one" in problems[2]
    assert not any(case.problem for case in layouts.find(root, require_truth=False).data_set.cases)
    shutil.rmtree(root / "labelsTr")
    with pytest.raises(DataError, match=r"found no label map of case case_0, nor of another of 3 cases"):
        layouts.find(root)


def test_another_file_format_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"found file_ending '.nrrd'; expected .nii.gz or .nii; convert"):
        layouts.find(described(write_nnunet(tmp_path), {**CT, "file_ending": ".nrrd"}))


def test_a_stray_file_is_told(tmp_path):
    root = write_nnunet(tmp_path)
    save(images_of(0, 1)[..., 0], root / "imagesTr" / "case_0_copy.nii.gz", affine())
    found = layouts.find(root).data_set
    assert [path.name for path in found.unused] == ["case_0_copy.nii.gz"]
    assert len(found.cases) == 3


def test_label_maps_without_images_and_endings_in_capitals_are_told(tmp_path):
    root = write_nnunet(tmp_path)
    shutil.copy(root / "labelsTr" / "case_0.nii.gz", root / "labelsTr" / "former.nii.gz")
    for path in (root / "imagesTr" / "case_2_0000.nii.gz", root / "labelsTr" / "case_2.nii.gz"):
        path.rename(path.with_name(path.name.replace(".nii.gz", ".NII.GZ")))
    found = layouts.find(root).data_set
    assert [path.name for path in found.unused] == ["case_2_0000.NII.GZ", "case_2.NII.GZ", "former.nii.gz"]
    assert len(found.cases) == 2


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_manifest_of_any_channels(tmp_path, form):
    write_nnunet(tmp_path, cases=2)
    rows = [
        {"case": f"p{i}", "CT": f"imagesTr/case_{i}_0000.nii.gz", "truth": f"labelsTr/case_{i}.nii.gz"}
        for i in range(2)
    ]
    path = tmp_path / f"own.{form}"
    if form == "json":
        (tmp_path / "dataset.json").unlink()
        path.write_text(json.dumps({"channel_names": ["CT"], "labels": CT["labels"], "cases": rows}))
    else:
        path.write_text("case,CT,truth\n" + "\n".join(",".join(row.values()) for row in rows))
    found = layouts.find(path)
    assert [case.id for case in found.data_set.cases] == ["p0", "p1"]
    assert dict(found.description.schema.labels) == {"liver": 1, "spleen": 2}


def test_a_manifest_needs_labels(tmp_path):
    (tmp_path / "own.csv").write_text("case,CT\n1,a.nii.gz\n")
    with pytest.raises(DataError, match=r"own.csv: found no channel_names and labels"):
        layouts.find(tmp_path / "own.csv")
