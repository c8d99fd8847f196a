"""The same patient is known under several ids: by name, by the challenge's own tables, and by the image itself."""

import shutil
from pathlib import Path

import pytest

from lms3d.data import split
from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.patients import patient_of
from lms3d.data.errors import DataError
from tests.data.small_data import LATE, random_case, write_case

HEAD = (
    "Grade,BraTS_2017_subject_ID,BraTS_2018_subject_ID,TCGA_TCIA_subject_ID,BraTS_2019_subject_ID,BraTS_2020_subject_ID"
)


@pytest.mark.parametrize(
    ("case_id", "patient"),
    [
        ("BraTS-GLI-00005-100", "BraTS-GLI-00005"),
        ("BraTS-GoAT-00005", "BraTS-GoAT-00005"),
        ("BraTS-MET-00559-003", "BraTS-MET-00559"),
        ("TCGA-02-0006", "TCGA-02-0006"),
        ("TCGA-02-0006_1996.08.23", "TCGA-02-0006"),
        ("Brats17_CBICA_AAB_1", "CBICA_AAB"),
        ("BraTS19_CBICA_AAB_1", "CBICA_AAB"),
        ("Brats17_TCIA_167_1", "TCIA_167"),
        ("Brats18_TCIA08_167_1", "TCIA_167"),
        ("Brats18_2013_2_1", "2013_2"),
        ("BraTS20_Training_001", "BraTS20_Training_001"),
        ("BraTS2021_00000", "BraTS2021_00000"),
        ("BRATS_001", "BRATS_001"),
        ("anna", "anna"),
    ],
)
def test_an_id_tells(case_id, patient):
    assert patient_of(case_id) == patient


def test_the_same_name_in_two_years(tmp_path):
    write_case(tmp_path / "18" / "HGG" / "Brats18_CBICA_AAB_1", random_case(1))
    write_case(tmp_path / "19" / "LGG" / "BraTS19_CBICA_AAB_1", random_case(2))
    found = find_cases(tmp_path)
    assert set(found.patients.values()) == {"CBICA_AAB"}
    assert found.grades == {"Brats18_CBICA_AAB_1": "HGG", "BraTS19_CBICA_AAB_1": "LGG"}
    with pytest.raises(DataError, match="found 1 patient"):
        split.make(found.patients, 0, patients=found.patients)


@pytest.mark.parametrize("where", [".", "2020", "above"])
def test_tables_of_the_challenge(tmp_path, where):
    root = tmp_path / "above" / "data"
    write_case(root / "2019" / "BraTS19_TMC_06290_1", random_case(1))
    write_case(root / "2020" / "BraTS20_Training_001", random_case(2))
    write_case(root / "2020" / "BraTS20_Training_002", random_case(3))
    rows = [
        HEAD,
        "HGG,NA,NA,NA,BraTS19_TMC_06290_1,BraTS20_Training_001",
        "LGG,NA,NA,TCGA-02-0006,NA,BraTS20_Training_002",
    ]
    folder = {"above": tmp_path / "above"}.get(where, root / where)
    (folder / "name_mapping.csv").write_text("\n".join(rows))
    found = find_cases(root / ".." / "data")
    one, two, three = (found.patients[case.id] for case in found.cases)
    assert one == two != three
    assert found.grades == {
        "BraTS19_TMC_06290_1": "HGG",
        "BraTS20_Training_001": "HGG",
        "BraTS20_Training_002": "LGG",
    }


def test_links_of_several_rows_and_tables(tmp_path):
    for number, name in enumerate(("Brats17_TCIA_101_1", "BraTS20_Training_001", "BraTS20_Validation_001")):
        write_case(tmp_path / name, random_case(number))
    (tmp_path / "name_mapping.csv").write_text(
        f"{HEAD}\nHGG,Brats17_TCIA_101_1,NA,TCGA-02-0006,NA,BraTS20_Training_001"
    )
    (tmp_path / "name_mapping_validation_data.csv").write_text(
        "BraTS_2020_subject_ID,TCGA_TCIA_subject_ID\nBraTS20_Validation_001,TCGA-02-0006\n"
    )
    assert len(set(find_cases(tmp_path).patients.values())) == 1


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", HEAD, f"{HEAD}\nHGG\n", f"{HEAD},{HEAD}\n" + "x," * 40])
def test_tables_that_say_nothing(data_set, content):
    (data_set / "name_mapping.csv").write_text(content)
    found = find_cases(data_set)
    assert len(set(found.patients.values())) == 5


def test_a_damaged_table(data_set):
    (data_set / "name_mapping.csv").write_bytes(b"\xff\xfe\x80" * 9)
    with pytest.raises(DataError, match=r"name_mapping.csv: found a table that cannot be read"):
        find_cases(data_set)


@pytest.mark.parametrize("ending", [".nii.gz", ".nii"])
def test_the_same_image_in_two_sets(tmp_path, ending):
    for number, name in enumerate(("BraTS20_Training_001", "BraTS20_Training_002", "BraTS2021_00007")):
        write_case(tmp_path / name, random_case(number), ending=ending)
    shutil.copy(
        tmp_path / "BraTS20_Training_002" / f"BraTS20_Training_002_t1{ending}",
        tmp_path / "BraTS2021_00007" / f"BraTS2021_00007_t1{ending}",
    )
    found = find_cases(tmp_path).patients
    assert found["BraTS20_Training_002"] == found["BraTS2021_00007"] != found["BraTS20_Training_001"]
    for seed in range(20):
        parts = split.make(found, seed, 0.5, patients=found)
        split.require_undivided(parts, found, "split.json")


def manifest_of(path, cases, **patients):
    """A manifest of these folders of cases, which may lie anywhere."""
    rows = ["case,t1,t1ce,flair,t2,truth,patient"]
    for folder in cases:
        files = (folder / f"{folder.name}_{kind}.nii.gz" for kind in ("t1", "t1ce", "flair", "t2", "seg"))
        rows.append(",".join([folder.name, *map(str, files), patients.get(folder.name, "")]))
    path.write_text("\n".join(rows))
    return path


def test_the_same_image_in_a_manifest(tmp_path):
    folders = [tmp_path / name for name in ("anna", "berta", "clara")]
    for number, folder in enumerate(folders):
        write_case(folder, random_case(number))
    shutil.copy(folders[1] / "berta_t1.nii.gz", folders[2] / "clara_t1.nii.gz")
    found = find_cases(manifest_of(tmp_path / "m.csv", folders, clara="not berta"), labels="brats2021").patients
    assert found["berta"] == found["clara"] != found["anna"]


@pytest.mark.parametrize("grade", ["", "HGG"])
def test_tables_reach_a_manifest_wherever_its_cases_lie(tmp_path, grade):
    folders = [tmp_path / "sets/2020" / grade / "BraTS20_Training_001", tmp_path / "sets/2019/HGG/BraTS19_TMC_06290_1"]
    for number, folder in enumerate(folders):
        write_case(folder, random_case(number))
    (tmp_path / "sets/2020/name_mapping.csv").write_text(
        f"{HEAD}\nHGG,NA,NA,NA,BraTS19_TMC_06290_1,BraTS20_Training_001"
    )
    (tmp_path / "elsewhere").mkdir()
    path = manifest_of(tmp_path / "elsewhere" / "m.csv", folders, BraTS20_Training_001="Smith")
    assert len(set(find_cases(path, labels="brats2020").patients.values())) == 1


def test_uncompressed_images_that_differ_are_not_read_as_a_whole(tmp_path, monkeypatch):
    for number, name in enumerate(("BraTS20_Training_001", "BraTS20_Training_002", "BraTS2021_00007")):
        write_case(tmp_path / name, random_case(number), ending=".nii")
    write_case(tmp_path / "BraTS2021_00008", random_case(8))  # compressed
    whole = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: pytest.fail(f"{path} was read") if path.suffix == ".nii" else whole(path)
    )
    assert len(set(find_cases(tmp_path).patients.values())) == 4


def test_a_damaged_compressed_image_beside_others_is_nobodys(tmp_path):
    for number, ending in enumerate((".nii", ".nii.gz", ".nii")):
        write_case(tmp_path / f"BraTS2021_0000{number}", random_case(number), ending=ending)
    path = tmp_path / "BraTS2021_00001" / "BraTS2021_00001_t1.nii.gz"
    path.write_bytes(path.read_bytes()[:20] + bytes(60) + path.read_bytes()[-8:])
    assert len(set(find_cases(tmp_path).patients.values())) == 3


def test_grades_of_folders(tmp_path):
    tcia = {"t1": "_t1", "t1ce": "_t1Gd", "flair": "_flair", "t2": "_t2", "truth": "_GlistrBoost"}
    for collection, name in (("GBM", "TCGA-02-0006"), ("LGG", "TCGA-CS-4938")):
        folder = tmp_path / f"Pre-operative_TCGA_{collection}_NIfTI_and_Segmentations" / name
        write_case(folder, random_case(1), tcia, stem=f"{name}_1996.08.23")
    assert find_cases(tmp_path).grades == {"TCGA-02-0006": "HGG", "TCGA-CS-4938": "LGG"}


def test_visits_before_and_after_treatment_are_one_patient(tmp_path):
    for visit in ("000", "100"):
        write_case(tmp_path / f"BraTS-GLI-00005-{visit}", random_case(int(visit), (1, 2, 3)), LATE)
    assert set(find_cases(tmp_path, labels="brats2024").patients.values()) == {"BraTS-GLI-00005"}
