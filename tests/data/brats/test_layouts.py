"""Every published layout is found, with its oddities; what cannot be used is named."""

from pathlib import Path

import pytest

from data.brats import layouts
from data.brats.case import Case
from data.brats.layouts import find_cases
from data.errors import DataError
from tests.data.small_data import EARLY, LATE, check_case, random_case, save, write_case

TCIA = {"t1": "_t1", "t1ce": "_t1Gd", "flair": "_flair", "t2": "_t2", "truth": "_GlistrBoost_ManuallyCorrected"}

LAYOUTS = [
    ("tcia", "Pre-operative_TCGA_GBM_NIfTI_and_Segmentations/TCGA-02-0006", "TCGA-02-0006_1996.08.23", TCIA, ".nii.gz"),
    ("brats2017", "MICCAI_BraTS17_Data_Training/HGG/Brats17_CBICA_ATW_1", "", EARLY, ".nii.gz"),
    ("brats2018", "MICCAI_BraTS_2018_Data_Training/LGG/Brats18_2013_2_1", "", EARLY, ".nii.gz"),
    ("brats2019", "MICCAI_BraTS_2019_Data_Training/HGG/BraTS19_CBICA_AAB_1", "", EARLY, ".nii.gz"),
    ("brats2020", "MICCAI_BraTS2020_TrainingData/BraTS20_Training_001", "", EARLY, ".nii"),
    ("brats2021", "RSNA_ASNR_MICCAI_BraTS2021_TrainingData/deeper/BraTS2021_00000", "", EARLY, ".nii.gz"),
    ("brats2023", "ASNR-MICCAI-BraTS2023-GLI-Challenge-TrainingData/x/BraTS-GLI-00000-000", "", LATE, ".nii.gz"),
    ("brats2023", "BraTS-PED/BraTS-PED-00002-000", "", LATE, ".nii.gz"),
    ("brats2024", "training_data1/BraTS-GLI-02062-100", "", LATE, ".nii.gz"),
]


@pytest.mark.parametrize(("schema", "folder", "stem", "names", "ending"), LAYOUTS)
def test_layout(tmp_path: Path, schema, folder, stem, names, ending):
    write_case(tmp_path / folder, random_case(0), names, stem=stem, ending=ending)
    (case,), found = find_cases(tmp_path)
    assert found.name == schema
    assert case.id == Path(folder).name
    assert {channel: path.name.removesuffix(ending) for channel, path in case.images.items()} == {
        channel: (stem or case.id) + names[channel] for channel in ("t1", "t1ce", "flair", "t2")
    }
    assert case.truth is not None
    assert case.truth.name == (stem or case.id) + names["truth"] + ending


def test_tcia_prefers_the_corrected_labels_and_takes_the_automatic_ones(tmp_path):
    folder = write_case(tmp_path / "TCGA-02-0006", random_case(0), TCIA, stem="TCGA-02-0006_1996.08.23")
    automatic = save(random_case(0)["truth"], folder / "TCGA-02-0006_1996.08.23_GlistrBoost.nii.gz")
    (case,), _ = find_cases(tmp_path)
    assert case.truth.name.endswith("ManuallyCorrected.nii.gz")
    case.truth.unlink()
    (case,), _ = find_cases(tmp_path)
    assert case.truth == automatic


def test_case_355_of_2020_has_a_truth_of_another_name(tmp_path):
    folder = write_case(tmp_path / "BraTS20_Training_355", random_case(0), ending=".nii")
    (folder / "BraTS20_Training_355_seg.nii").rename(folder / "W39_1998.09.19_Segm.nii")
    (case,), _ = find_cases(tmp_path)
    assert case.truth.name == "W39_1998.09.19_Segm.nii"


def test_compressed_files_win_and_hidden_files_do_not_count(data_set):
    folder = data_set / "BraTS20_Training_001"
    save(random_case(9)["t1"], folder / "BraTS20_Training_001_t1.nii")
    (folder / "._BraTS20_Training_001_t1.nii.gz").write_bytes(b"macOS leaves these")
    cases, _ = find_cases(data_set)
    assert [case.id for case in cases] == [f"BraTS20_Training_{n:03d}" for n in range(1, 6)]
    assert cases[0].images["t1"].name == "BraTS20_Training_001_t1.nii.gz"


def test_a_flat_folder_and_a_loop_of_links(tmp_path):
    for number in (1, 2):
        write_case(tmp_path / "all", random_case(number), stem=f"BraTS20_Training_{number:03d}")
    (tmp_path / "all" / "again").symlink_to(tmp_path)
    cases, _ = find_cases(tmp_path)
    assert [case.id for case in cases] == ["BraTS20_Training_001", "BraTS20_Training_002"]


def test_own_data_needs_to_be_told_its_labels(tmp_path):
    write_case(tmp_path / "patient_1", random_case(0, (1, 2, 3)))
    with pytest.raises(DataError, match=r"names of no known data set.*add --labels with one of tcia"):
        find_cases(tmp_path)
    _, schema = find_cases(tmp_path, labels="brats2023")
    assert schema.name == "brats2023"


def test_two_sets_under_one_folder(tmp_path):
    write_case(tmp_path / "BraTS20_Training_001", random_case(0))
    write_case(tmp_path / "BraTS-GLI-00000-000", random_case(0, (1, 2, 3)), LATE)
    with pytest.raises(DataError, match=r"cases of several sets \(brats2020, brats2023\)"):
        find_cases(tmp_path)


def test_missing_modality(data_set):
    (data_set / "BraTS20_Training_003" / "BraTS20_Training_003_flair.nii.gz").unlink()
    with pytest.raises(
        DataError, match=r"BraTS20_Training_003: found no flair image; expected BraTS20_.*_flair.nii.gz"
    ):
        find_cases(data_set)


def test_missing_truth(data_set):
    (data_set / "BraTS20_Training_004" / "BraTS20_Training_004_seg.nii.gz").unlink()
    with pytest.raises(DataError, match=r"BraTS20_Training_004: found no label map \(1 of 5 cases"):
        find_cases(data_set)
    cases, _ = find_cases(data_set, require_truth=False)
    assert [case.truth is None for case in cases] == [False, False, False, True, False]


def test_a_case_twice(data_set):
    write_case(data_set / "copy" / "BraTS20_Training_001", random_case(1))
    with pytest.raises(DataError, match=r"found case BraTS20_Training_001, which is also in"):
        find_cases(data_set)


def test_folders_that_hold_nothing(tmp_path):
    with pytest.raises(DataError, match="found no case; expected folders with"):
        find_cases(tmp_path)
    with pytest.raises(DataError, match="found nothing; expected a folder"):
        find_cases(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="found a file; expected a folder"):
        find_cases(tmp_path / "file")


def test_a_layout_that_somebody_adds(tmp_path, monkeypatch):
    class OneFolderPerSequence:
        schema = "brats2023"

        def stems(self, folder, files):
            return [name.removesuffix(".nii.gz") for name in files] if folder.name == "t1" else []

        def case_of(self, folder, stem, files):
            images = {
                channel: folder.with_name(channel) / f"{stem}.nii.gz" for channel in ("t1", "t1ce", "flair", "t2")
            }
            return Case(id=stem, images=images, truth=folder.with_name("truth") / f"{stem}.nii.gz")

    for name, array in random_case(0, (1, 2, 3)).items():
        save(array, tmp_path / name / "anna.nii.gz")
    with pytest.raises(DataError, match="found no case"):
        find_cases(tmp_path)
    monkeypatch.setattr(layouts, "LAYOUTS", (*layouts.LAYOUTS, OneFolderPerSequence()))
    (case,), schema = find_cases(tmp_path)
    assert (case.id, schema.name) == ("anna", "brats2023")
    check_case(case, schema)
