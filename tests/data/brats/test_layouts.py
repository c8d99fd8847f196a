"""Every published layout is recognised, with its oddities, and data that cannot be used is named."""

from pathlib import Path

import numpy as np
import pytest

from lms3d.data.brats import layouts
from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.naming import year_of
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.errors import DataError
from lms3d.data.volumes.case import Case, load_images, load_truth
from lms3d.data.volumes.labels import LabelSchema
from tests.data.small_data import EARLY, LATE, SHAPE, check_case, random_case, save, write_case

TCIA = {"t1": "_t1", "t1ce": "_t1Gd", "flair": "_flair", "t2": "_t2", "truth": "_GlistrBoost_ManuallyCorrected"}
GZ, PLAIN = ".nii.gz", ".nii"
PRE = "ASNR-MICCAI-BraTS2023-GLI-Challenge-TrainingData"

LAYOUTS = [  # layout as text, schema, folder of the case, names, ending
    ("TCIA", "tcia", "Pre-operative_TCGA_GBM_NIfTI_and_Segmentations/TCGA-02-0006", TCIA, GZ),
    ("BraTS 2017", "brats2017", "MICCAI_BraTS17_Data_Training/HGG/Brats17_CBICA_ATW_1", EARLY, GZ),
    ("BraTS 2018", "brats2018", "MICCAI_BraTS_2018_Data_Training/LGG/Brats18_2013_2_1", EARLY, GZ),
    ("BraTS 2019", "brats2019", "MICCAI_BraTS_2019_Data_Training/HGG/BraTS19_CBICA_AAB_1", EARLY, GZ),
    ("BraTS 2020", "brats2020", "MICCAI_BraTS2020_TrainingData/BraTS20_Training_001", EARLY, PLAIN),
    ("BraTS 2021", "brats2021", "RSNA_ASNR_MICCAI_BraTS2021_TrainingData/deeper/BraTS2021_00000", EARLY, GZ),
    ("GLI before", "brats2023", f"{PRE}/{PRE}/BraTS-GLI-00000-000", LATE, GZ),
    ("GLI before", "brats2023", "some/folder/BraTS-GLI-01666-000", LATE, GZ),
    ("GLI before", "brats2023", "BraTS2025-GLI-PRE-Challenge-TrainingData/BraTS-GLI-00494-001", LATE, GZ),
    ("GLI after", "brats2024", "BraTS2024-BraTS-GLI-TrainingData/training_data1_v2/BraTS-GLI-00005-100", LATE, GZ),
    ("GLI after", "brats2024", "training_data_additional/BraTS-GLI-02062-100", LATE, GZ),
    ("GLI after", "brats2024", "some/folder/BraTS-GLI-03011-101", LATE, GZ),
    ("SSA", "brats2023", "ASNR-MICCAI-BraTS2023-SSA-Challenge-TrainingData_V2/BraTS-SSA-00002-000", LATE, GZ),
    ("MEN", "brats2023", "ASNR-MICCAI-BraTS2023-MEN-Challenge-TrainingData/BraTS-MEN-00004-000", LATE, GZ),
    ("MET 2023", "brats2023", "ASNR-MICCAI-BraTS2023-MET-Challenge-TrainingData/BraTS-MET-00001-000", LATE, GZ),
    ("MET 2023", "brats2023", "MICCAI-BraTS2024-MET-Challenge-Training_1/BraTS-MET-00255-000", LATE, GZ),
    ("MET 2025", "brats2024", "MICCAI-LH-BraTS2025-MET-Challenge-Training/BraTS-MET-00559-003", LATE, GZ),
    ("PED 2023", "brats2023", "ASNR-MICCAI-BraTS2023-PED-Challenge-TrainingData/BraTS-PED-00002-000", LATE, GZ),
    ("PED 2024", "brats2024-ped", "BraTS-PEDs2024_Training/BraTS-PED-00002-000", LATE, GZ),
    ("PED 2024", "brats2024-ped", "BraTS2025-PED/BraTS-PED-00300-000", LATE, GZ),
    ("PED 2023", "brats2023", "brats2024-work/PEDs2023/BraTS-PED-00300-000", LATE, GZ),
    ("MET 2023", "brats2023", "brats25_project/MET2023/BraTS-MET-00300-000", LATE, GZ),
    ("GoAT", "brats2023", "MICCAI2024-BraTS-GoAT-TrainingData-With-GroundTruth/BraTS-GoAT-00000", LATE, GZ),
]


def learnt_three(schema: LabelSchema) -> tuple[int, ...]:
    return schema.learnt_values[:3]


def _grid(case: Case) -> tuple[tuple[int, ...], np.ndarray]:
    images, affine = load_images(case)
    return images.shape[:3], affine


def check_regions(case: Case, schema: LabelSchema) -> None:
    """The truth of `random_case` has its regions at its boxes."""
    truth = load_truth(case, schema, *_grid(case))
    assert truth is not None
    whole, core, necrosis = (np.zeros(SHAPE, bool) for _ in range(3))
    for mask, margin in ((whole, 5), (core, 7), (necrosis, 8)):
        mask[margin:-margin, margin:-margin, margin:-margin] = True
    for region, mask in {"WT": whole, "TC": core, "ET": core & ~necrosis}.items():
        np.testing.assert_array_equal(np.isin(truth, schema.regions[region]), mask, region)


@pytest.mark.parametrize("row", range(len(LAYOUTS)))
def test_layout(tmp_path: Path, row):
    said, name, folder, names, ending = LAYOUTS[row]
    stem = "TCGA-02-0006_1996.08.23" if names is TCIA else ""
    write_case(tmp_path / folder, random_case(0, learnt_three(SCHEMAS[name])), names, stem=stem, ending=ending)
    found = find_cases(tmp_path)
    (case,) = found.cases
    assert said in found.layout
    assert found.schema.name == name
    assert case.id == Path(folder).name
    assert {channel: path.name.removesuffix(ending) for channel, path in case.images.items()} == {
        channel: (stem or case.id) + names[channel] for channel in ("t1", "t1ce", "flair", "t2")
    }
    assert case.truth is not None
    assert case.truth.name == (stem or case.id) + names["truth"] + ending
    check_regions(case, found.schema)


@pytest.mark.parametrize("ending", [GZ, PLAIN])
def test_mirrors_of_2021_have_folders_in_place_of_files(tmp_path, ending):
    inner = {"t1": "brain_t1", "t1ce": "brain_t1ce", "flair": "brain_flair", "t2": "brain_t2", "truth": "final_seg"}
    folder = tmp_path / "BraTS2021_Training_Data" / "BraTS2021_00000"
    for name, array in random_case(0).items():
        save(array, folder / f"BraTS2021_00000{EARLY[name]}.nii" / f"00000057_{inner[name]}{ending}")
    write_case(tmp_path / "BraTS2021_Training_Data" / "BraTS2021_00002", random_case(2))
    found = find_cases(tmp_path)
    assert found.layout == "BraTS 2021 (mirrored, folders ending in .nii)"
    assert [case.id for case in found.cases] == ["BraTS2021_00000", "BraTS2021_00002"]
    assert found.cases[0].images["flair"].name == f"00000057_brain_flair{ending}"
    check_case(found.cases[0], found.schema)
    check_regions(found.cases[0], found.schema)


@pytest.mark.parametrize("content", [[], ["a.nii", "b.nii"], ["readme.txt"]])
def test_a_folder_in_place_of_a_file_that_holds_no_single_image(tmp_path, content):
    folder = write_case(tmp_path / "BraTS2021_00000", random_case(0))
    (folder / "BraTS2021_00000_flair.nii.gz").unlink()
    wrapper = folder / "BraTS2021_00000_flair.nii.gz"
    wrapper.mkdir()
    for name in content:
        (wrapper / name).touch()
    with pytest.raises(DataError, match=r"BraTS2021_00000: found no flair image; expected BraTS2021_00000_flair"):
        find_cases(tmp_path)


AMBIGUOUS = [  # folder of the case, text of the error
    ("BraTS-PED/BraTS-PED-00002-000", "BraTS PED, of an unknown year .*brats2024-ped for 2024 and 2025"),
    ("PKG - BraTS-PEDs-v1/Training/BraTS-PED-00002-000", "BraTS PED, of an unknown year"),
    ("BraTS2026-PED/BraTS-PED-00002-000", "BraTS PED, of an unknown year"),
    ("BraTS2023-and-2024/BraTS-PED-00002-000", "BraTS PED, of an unknown year"),
    ("brats2024-work/2023/BraTS-PED-00002-000", "BraTS PED, of an unknown year"),
    ("brats2024-work/PED23/BraTS-PED-00002-000", "BraTS PED, of an unknown year"),
    ("metastases/BraTS-MET-00001-000", "BraTS MET, of an unknown year .*brats2024 for 2025"),
    ("BraTS2024-GLI/BraTS-GLI-00000-000", "BraTS GLI, whose path and visits disagree"),
    ("BraTS2023-GLI/BraTS-GLI-00005-100", "BraTS GLI, whose path and visits disagree"),
    ("training_data1_v2/BraTS-GLI-00005-000", "BraTS GLI, whose path and visits disagree"),
    ("folder/BraTS-GLI-00005", "BraTS GLI, whose path and visits disagree"),
]


@pytest.mark.parametrize("row", range(len(AMBIGUOUS)))
def test_where_names_and_path_do_not_tell_the_labels_the_user_must(tmp_path, row):
    folder, line = AMBIGUOUS[row]
    write_case(tmp_path / folder, random_case(0, (1, 2, 3)), LATE)
    with pytest.raises(DataError, match=f"found {line}.*; expected .*; add --labels with one of") as caught:
        find_cases(tmp_path)
    assert "\n" not in str(caught.value)
    for labels in ("brats2023", "brats2024"):
        assert find_cases(tmp_path, labels=labels).schema.name == labels


def test_before_and_after_treatment_have_different_labels(tmp_path):
    write_case(tmp_path / "BraTS-GLI-00005-000", random_case(0, (1, 2, 3)), LATE)
    write_case(tmp_path / "BraTS-GLI-00005-100", random_case(1, (1, 2, 3)), LATE)
    with pytest.raises(
        DataError, match=r"cases of several sets \(brats2023 as in .*-000-t1n.nii.gz, .*or add --labels brats2024"
    ):
        find_cases(tmp_path)
    found = find_cases(tmp_path, labels="brats2024")
    assert set(found.patients.values()) == {"BraTS-GLI-00005"}
    assert found.layout == "BraTS GLI before treatment (2023, 2025) and BraTS GLI after treatment (2024, 2025)"


def test_the_cavity_is_read_and_no_tumour(tmp_path):
    arrays = random_case(0, (1, 2, 3))
    arrays["truth"][2:4, 2:4, 2:4] = 4
    write_case(tmp_path / "MICCAI-LH-BraTS2025-MET" / "BraTS-MET-00001-000", arrays, LATE)
    (case,), schema = find_cases(tmp_path)
    check_regions(case, schema)
    assert np.count_nonzero(np.isin(load_truth(case, schema), schema.regions["RC"])) == 8


def test_radiotherapy_is_refused_by_name(tmp_path):
    folder = tmp_path / "BraTS-MEN-RT-Train-v2" / "BraTS-MEN-RT-0004-1"
    save(random_case(0)["t1ce"], folder / "BraTS-MEN-RT-0004-1_t1c.nii.gz")
    save(random_case(0)["truth"], folder / "BraTS-MEN-RT-0004-1_gtv.nii.gz")
    for labels in (None, "brats2023"):
        with pytest.raises(DataError, match=r"BraTS-MEN-RT-0004-1: found BraTS-MEN-RT, which has one modality"):
            find_cases(tmp_path, labels=labels)


@pytest.mark.parametrize(
    ("folder", "year"),
    [
        ("/x/BraTS2024/ASNR-MICCAI-BraTS2023-PED/BraTS-PED-02024-000", 2023),
        ("/x/brats24_MET/BraTS-MET-00001-000", 2024),
        ("/x/BraTS_2025/deeper", 2025),
        ("/x/2024/data", None),
        ("/x/BraTS-PED-2024-Training", 2024),
        ("/x/MICCAI2024-BraTS-GoAT", 2024),
        ("/x/brats20240131", None),
        ("/x/brats2024-work/PEDs2023/BraTS-PED-00002-000", 2023),
        ("/x/brats25_project/MET2023", 2023),
        ("/x/brats2024-work/Training_2023", None),
        ("/x/brats2024-work/2024/Training", 2024),
        ("/x/BraTS2024/of_2023-11-05/BraTS-PED", None),
        ("/x/BraTS2023/PED24", None),
        ("/x/brats2025/methods20/documents2024", None),
        ("/x/BraTS2025-MET/BraTS-MET-02023-000", 2025),
        ("/x/2024/BraTS2023-PED", 2023),
    ],
)
def test_the_year_in_a_path(folder, year):
    assert year_of(Path(folder)) == year


def test_years_with_the_same_labels_are_one_set(tmp_path):
    write_case(tmp_path / "a" / "BraTS20_Training_001", random_case(0))
    write_case(tmp_path / "b" / "BraTS2021_00000", random_case(1))
    found = find_cases(tmp_path)
    assert found.schema.name == "brats2021"
    assert found.layout == "BraTS 2020 and BraTS 2021"
    assert len(found.cases) == 2


def test_a_flat_folder_with_a_name_that_all_cases_begin_with(tmp_path):
    for number in (1, 2):
        write_case(tmp_path / "BraTS20", random_case(number), stem=f"BraTS20_Training_{number:03d}")
    assert [case.id for case in find_cases(tmp_path).cases] == ["BraTS20_Training_001", "BraTS20_Training_002"]


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
    with pytest.raises(
        DataError, match=r"cases of several sets \(brats2020 as in .*_001_t1.nii.gz, brats2023 as in"
    ) as caught:
        find_cases(tmp_path)
    assert "give the folder of one of them" in str(caught.value)
    assert "--labels" not in str(caught.value)  # any would refuse, or mislabel, a half


def test_missing_modality(data_set):
    (data_set / "BraTS20_Training_003" / "BraTS20_Training_003_flair.nii.gz").unlink()
    with pytest.raises(
        DataError, match=r"BraTS20_Training_003: found no flair image; expected BraTS20_.*_flair.nii.gz"
    ):
        find_cases(data_set)


def test_endings_in_capitals_are_told(data_set):
    for path in (data_set / "BraTS20_Training_003").glob("*.nii.gz"):
        path.rename(path.with_name(path.name.replace(".nii.gz", ".NII.GZ")))
    found = find_cases(data_set)
    assert len(found.cases) == 4
    assert {path.name.partition(".")[2] for path in found.unused} == {"NII.GZ"}
    assert len(found.unused) == 5


def test_missing_truth(data_set):
    (data_set / "BraTS20_Training_004" / "BraTS20_Training_004_seg.nii.gz").unlink()
    with pytest.raises(DataError, match=r"found no label map of case BraTS20_Training_004 \(1 of 5 cases"):
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
        title = "one folder per sequence"
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
