"""The Decathlon's brain tumours: four modalities in one file, in another order, with other labels."""

import json

import numpy as np
import pytest

from lms3d.data.brats import cache
from lms3d.data.brats.case import load_images
from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.preprocess import cube
from lms3d.data.errors import DataError
from tests.data.small_data import random_case, save


@pytest.fixture
def task(tmp_path):
    home = tmp_path / "Task01_BrainTumour"
    for number in (1, 2):
        arrays = random_case(number, (2, 1, 3))
        stacked = np.stack([arrays[name] for name in ("flair", "t1", "t1ce", "t2")], axis=-1)
        save(stacked, home / "imagesTr" / f"BRATS_{number:03d}.nii.gz")
        save(arrays["truth"], home / "labelsTr" / f"BRATS_{number:03d}.nii.gz")
    save(stacked, home / "imagesTs" / "BRATS_485.nii.gz")
    return home


def test_training_cases(task):
    for root in (task, task.parent):
        cases, schema = find_cases(root)
        assert schema.name == "msd"
        assert [case.id for case in cases] == ["BRATS_001", "BRATS_002"]
    images, _ = load_images(cases[0])
    expected = random_case(1, (2, 1, 3))
    for index, channel in enumerate(("t1", "t1ce", "flair", "t2")):
        np.testing.assert_array_equal(images[..., index], expected[channel])


def test_they_go_through_the_cache(task, tmp_path):
    cases, schema = find_cases(task)
    built = cache.build(cases, schema, cube(16), directory=tmp_path / "c", workers=1)
    assert built.image("BRATS_002").shape == (16, 16, 16, 4)
    assert set(np.unique(built.truth("BRATS_002"))) == {0, 1, 2, 3}


def test_a_missing_label_map_and_a_3d_file(task):
    (task / "labelsTr" / "BRATS_002.nii.gz").unlink()
    with pytest.raises(DataError, match="no label map"):
        find_cases(task)
    cases, _ = find_cases(task, require_truth=False)
    save(np.ones((4, 4, 4), np.int16), cases[1].images["t1"])
    with pytest.raises(DataError, match=r"BRATS_002.nii.gz: found shape 4x4x4; expected four axes"):
        load_images(cases[1])


DESCRIPTION = {  # as in the archive
    "modality": {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"},
    "labels": {"0": "background", "1": "edema", "2": "non-enhancing tumor", "3": "enhancing tumour"},
}


def test_test_images_can_be_predicted(task, tmp_path):
    (task / "dataset.json").write_text(json.dumps(DESCRIPTION))
    (case,), schema = find_cases(task / "imagesTs", require_truth=False)
    assert (case.id, case.truth, schema.name) == ("BRATS_485", None, "msd")
    assert load_images(case)[0].shape[-1] == 4
    with pytest.raises(DataError, match="no label map"):
        find_cases(task / "imagesTs")
    alone = (task / "imagesTs").rename(tmp_path / "imagesTs")
    assert find_cases(alone.parent / "imagesTs", require_truth=False).cases[0].id == "BRATS_485"


def test_the_description_says_where_a_modality_stands(task):
    order = {"0": "T1w", "1": "FLAIR", "2": "t1gd", "3": "T2w"}
    (task / "dataset.json").write_text(json.dumps(DESCRIPTION | {"modality": order}))
    cases, _ = find_cases(task)
    np.testing.assert_array_equal(load_images(cases[0])[0][..., 0], random_case(1, (2, 1, 3))["flair"])


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {"0": "background", "1": "liver"}},
        {"modality": {"0": "CT"}},
        {"modality": {"0": "FLAIR", "1": "FLAIR", "2": "t1gd", "3": "T2w"}},
        {"modality": 3},
        {"labels": None},
    ],
)
def test_a_description_of_other_data_is_refused(task, change):
    (task / "dataset.json").write_text(json.dumps(DESCRIPTION | change))
    with pytest.raises(DataError, match=r"dataset.json: found (labels|modalities) "):
        find_cases(task)


def test_a_damaged_description(task):
    (task / "dataset.json").write_text("{")
    with pytest.raises(DataError, match=r"dataset.json: found damaged JSON"):
        find_cases(task)
