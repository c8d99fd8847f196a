"""Files as in public reports about other programs are read as meant, or refused in a line that says what to do."""

import gzip
import json
import logging
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from lms3d.data import files, prepare
from lms3d.data.brats import layouts
from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.preprocess import Preprocessing, cube
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.errors import DataError, NoCaseError
from lms3d.data.volumes import cache, fingerprint, patients
from lms3d.data.volumes.case import load_images, load_truth
from lms3d.data.volumes.header import nifti_image, read_header
from lms3d.data.volumes.volume import read_volume
from tests.data.small_data import AFFINE, LATE, SHAPE, random_case, save, write_case

SCHEMA = SCHEMAS["brats2021"]
CASE = "BraTS2021_00001"


@pytest.fixture
def one(tmp_path):
    """The folder of a data set with one case."""
    write_case(tmp_path / "set" / CASE, random_case(1))
    return tmp_path / "set"


def scan(root: Path, modality: str = "t2", case: str = CASE) -> Path:
    return root / case / f"{case}_{modality}.nii.gz"


def only_case(root: Path, **options):
    (found,), _ = find_cases(root, **options)
    return found


# -- units and sizes of voxels


@pytest.mark.parametrize(("unit", "factor"), [("meter", 1e-3), ("micron", 1e3), ("mm", 1), ("unknown", 1)])
@pytest.mark.parametrize("form", ["sform", "qform"])
def test_the_unit_of_a_header_is_honoured(tmp_path, unit, factor, form):
    image = nib.Nifti1Image(random_case(1)["t1"], None)
    getattr(image, f"set_{form}")(np.diag([factor, factor, factor, 1]) @ AFFINE, 1)
    image.header.set_xyzt_units(unit)
    nib.save(image, tmp_path / "t1.nii.gz")
    np.testing.assert_allclose(read_header(tmp_path / "t1.nii.gz").affine, AFFINE, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mm", [1e-3, 2e-6, 150.0])
def test_voxels_of_a_size_that_no_scan_has_are_refused(tmp_path, mm):
    path = save(random_case(1)["t1"], tmp_path / "t1.nii.gz", np.diag([mm, mm, mm, 1]))
    with pytest.raises(
        DataError, match=rf"found voxels of {mm:.4g} x .* mm \(the unit of its header is .*correct the unit"
    ):
        read_header(path)


def test_a_box_that_no_memory_holds_is_refused_with_the_size_of_a_voxel(one, tmp_path):
    for path in (one / CASE).iterdir():
        save(nib.load(path).get_fdata().astype(np.int16), path, np.diag([0.006, 0.006, 0.006, 1]))
    cases, schema = find_cases(one)
    box = Preprocessing(shape=(160, 192, 160), stretched=False)
    with pytest.raises(
        DataError, match=r"_t1.nii.gz: found voxels of 0.006 .* --box 160x192x160 covers 26667x32000x26667: .* GiB"
    ):
        cache.build(cases, schema, box, directory=tmp_path / "cache", workers=1)
    assert cache.build(cases, schema, cube(16), directory=tmp_path / "cache", workers=1).ids == (CASE,)


# -- headers that do not say where voxels lie


def without_orientation(path: Path) -> None:
    nib.save(nib.Nifti1Image(np.asarray(nib.load(path).dataobj), None), path)


@pytest.mark.parametrize("modality", ["t1", "t2", "seg"])
def test_a_file_without_orientation_matches_voxel_by_voxel_with_a_warning(one, caplog, modality):
    expected = load_images(only_case(one))[0], load_truth(only_case(one), SCHEMA)
    without_orientation(scan(one, modality))
    case = only_case(one)
    with caplog.at_level(logging.WARNING, "data"):
        images, affine = load_images(case)
        truth = load_truth(case, SCHEMA, images.shape[:3], affine)
    np.testing.assert_array_equal(images, expected[0])
    np.testing.assert_array_equal(truth, expected[1])
    assert "sform_code and qform_code are 0" in caplog.text


def test_of_another_shape_it_is_refused(one):
    save(np.ones((20, 24, 17), np.int16), scan(one))
    without_orientation(scan(one))
    with pytest.raises(DataError, match="found shape 20x24x17; expected 20x24x18"):
        load_images(only_case(one))


def test_other_axes_that_a_header_states_stay_refused(one):
    save(random_case(1)["t2"], scan(one), np.eye(4))
    with pytest.raises(DataError, match="expected axes LPS"):
        load_images(only_case(one))


# -- labels that were scaled


def scaled(labels: np.ndarray, path: Path, dtype: type) -> None:
    image = nib.Nifti1Image(labels.astype(float), AFFINE)
    image.set_data_dtype(dtype)
    nib.save(image, path)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16])
def test_labels_of_floats_under_an_integer_header_are_the_labels_meant(one, dtype):
    labels = random_case(1)["truth"]
    scaled(labels, scan(one, "seg"), dtype)
    np.testing.assert_array_equal(load_truth(only_case(one), SCHEMA), labels)


def test_real_fractions_stay_refused_and_the_scaling_is_told(one):
    labels = random_case(1)["truth"].astype(float)
    labels[10, 12, 9] = 1.5
    scaled(labels, scan(one, "seg"), np.uint8)
    with pytest.raises(DataError, match=r"found label 1.50588 \(its header scales them: scl_slope 0.0156863"):
        load_truth(only_case(one), SCHEMA)


# -- files under wrong names


def test_first_bytes_tell_what_is_compressed(tmp_path):
    array = random_case(1)["t1"]
    raw = save(array, tmp_path / "t1.nii").read_bytes()
    (tmp_path / "raw.nii.gz").write_bytes(raw)
    (tmp_path / "zipped.nii").write_bytes(gzip.compress(raw))
    for name in ("raw.nii.gz", "zipped.nii"):
        np.testing.assert_array_equal(read_volume(tmp_path / name)[0], array)
        assert nifti_image(tmp_path / name).shape == SHAPE


def test_a_link_to_nothing_is_the_problem_of_one_case(tmp_path):
    for number in range(3):
        write_case(tmp_path / "set" / f"BraTS2021_0000{number}", random_case(number))
    scan(tmp_path / "set").unlink()
    scan(tmp_path / "set").symlink_to("nowhere.nii.gz")
    cases, schema = find_cases(tmp_path / "set")
    with pytest.raises(
        DataError,
        match=rf"{CASE}_t2.nii.gz: found a link to nothing .*leave the case out \(python -m lms3d.data.prepare",
    ):
        cache.build(cases, schema, cube(16), directory=tmp_path / "cache", workers=1)
    built = cache.build(cases, schema, cube(16), directory=tmp_path / "cache", workers=1, skip_bad=True)
    assert (built.ids, list(built.skipped)) == (("BraTS2021_00000", "BraTS2021_00002"), [CASE])


@pytest.mark.parametrize("link", [False, True])
def test_so_is_a_first_image_that_is_not_there_and_in_a_manifest(tmp_path, link):
    rows = ["case,t1,t1ce,flair,t2"]
    for number in range(2):
        write_case(tmp_path / f"c{number}", random_case(number), stem="x")
        rows.append(",".join([f"c{number}", *(f"c{number}/x_{name}.nii.gz" for name in ("t1", "t1ce", "flair", "t2"))]))
    (tmp_path / "m.csv").write_text("\n".join(rows))
    (tmp_path / "c1" / "x_t1.nii.gz").unlink()
    if link:
        (tmp_path / "c1" / "x_t1.nii.gz").symlink_to("nowhere")
    found = find_cases(tmp_path / "m.csv", labels="brats2021", require_truth=False, require_complete=False)
    assert found.complete == ["c0"]
    with pytest.raises(DataError, match=r"found no file 'c1/x_t1.nii.gz' for t1 in row 3.*leave the case out"):
        find_cases(tmp_path / "m.csv", labels="brats2021", require_truth=False)


# -- files beside the cases, and other layouts


@pytest.mark.parametrize("copy", ["Copy of {}", "old_{}", "{}-copy"])
def test_a_stray_file_is_named_and_nothing_else_changes(one, capsys, copy):
    stem = copy.format(f"{CASE}_t2")
    shutil.copyfile(scan(one), one / CASE / f"{stem}.nii.gz")
    found = find_cases(one)
    assert [case.id for case in found.cases] == [CASE]
    assert found.cases[0].images["t2"] == scan(one)
    assert [path.name for path in found.unused] == [f"{stem}.nii.gz"]
    assert prepare.main([str(one), "--examine", "--workers", "1"]) == 0
    assert f"not used: 1 file that belongs to no case, such as {one / CASE / stem}.nii.gz" in capsys.readouterr().out


def test_nothing_is_a_stray_in_a_sound_set(data_set, tmp_path):
    assert find_cases(data_set).unused == ()
    scan_ = next((data_set / "BraTS20_Training_001").glob("*_t1.nii.gz"))
    scan_.with_suffix("").write_bytes(gzip.decompress(scan_.read_bytes()))  # some keep both
    assert find_cases(data_set).unused == ()


def test_an_incomplete_case_of_ones_own_beside_published_ones_is_told(one):
    for modality in ("t1", "t1ce", "flair", "seg"):
        shutil.copyfile(scan(one, modality), one / CASE / f"Smith_{modality}.nii.gz")
    found = find_cases(one, labels="brats2021", require_complete=False)
    assert {case.id: bool(case.problem) for case in found.cases} == {CASE: False, "Smith": True}
    with pytest.raises(DataError, match=r"found no t2 image; expected Smith_t2.nii.gz"):
        find_cases(one, labels="brats2021")


def test_copies_of_some_files_of_a_case_are_strays(one):
    for modality in ("t1", "t2", "seg"):
        shutil.copyfile(scan(one, modality), one / CASE / f"Copy of {CASE}_{modality}.nii.gz")
    found = find_cases(one)
    assert [case.id for case in found.cases] == [CASE]
    assert len(found.unused) == 3


def test_both_label_maps_of_a_case_belong_to_it(tmp_path):
    names = {"t1": "_t1", "t1ce": "_t1Gd", "flair": "_flair", "t2": "_t2", "truth": "_GlistrBoost"}
    stem = "TCGA-02-0006_1996.08.23"
    folder = write_case(tmp_path / "TCGA-02-0006", random_case(0), names, stem=stem)
    shutil.copyfile(folder / f"{stem}_GlistrBoost.nii.gz", folder / f"{stem}_GlistrBoost_ManuallyCorrected.nii.gz")
    found = find_cases(tmp_path)
    assert found.unused == ()
    assert found.cases[0].truth.name == f"{stem}_GlistrBoost_ManuallyCorrected.nii.gz"


@pytest.mark.parametrize("where", ["{case}/Mueller_x.nii.gz", "more/Mueller_x.nii.gz", "Mueller\udcff.nii"])
def test_strays_have_pseudonyms_too(one, capsys, names_hidden_here, where):
    path = one / where.format(case=CASE)
    path.parent.mkdir(exist_ok=True)
    shutil.copyfile(scan(one), path)
    assert prepare.main([str(one), "--examine", "--workers", "1", "--anonymous"]) == 0
    told = capsys.readouterr().out
    assert "not used: 1 file that belongs to no case, such as" in told
    assert "file-" in told
    assert "Mueller" not in told


def test_a_whole_copy_of_a_case_is_named(one):
    for path in list((one / CASE).iterdir()):
        shutil.copyfile(path, path.with_name(f"Copy of {path.name}"))
    with pytest.raises(DataError, match=rf"found names of no known data set \(Copy of {CASE}_t1.nii.gz\)"):
        find_cases(one)


@pytest.mark.parametrize("at", ["", "imagesTr", "above"])
@pytest.mark.parametrize("stem", ["BraTS2021_00001", "BRATS_001"])
def test_a_raw_folder_of_nnunet_is_told_to_be_one(tmp_path, at, stem):
    root = tmp_path / "Dataset137_X"
    for channel in range(4):
        save(np.ones(SHAPE, np.int16), root / "imagesTr" / f"{stem}_{channel:04d}.nii.gz")
    with pytest.raises(NoCaseError, match=r"found a raw folder of nnU-Net; .*write a manifest"):
        find_cases(tmp_path if at == "above" else root / at)


def test_labels_named_against_a_known_set_are_told(one, caplog):
    with caplog.at_level(logging.WARNING, "data"):
        find_cases(one, labels="brats2024-ped")
    assert "whose labels are 1 NCR, 2 ED, 4 ET" in caplog.text
    assert "taken as 1 ET, 2 NETC, 3 CC, 4 ED" in caplog.text


def test_labels_that_say_the_same_or_more_are_not(one, tmp_path, caplog):
    write_case(tmp_path / "gli" / "BraTS-GLI-00005-000", random_case(1, (1, 2, 3)), LATE)
    with caplog.at_level(logging.WARNING, "data"):
        find_cases(one, labels="brats2019")
        find_cases(tmp_path / "gli", labels="brats2024")
    assert caplog.text == ""


# -- text files as editors save them


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_json_and_tables_are_read_in_any_encoding_of_an_editor(tmp_path, encoding):
    write_case(tmp_path / "c", random_case(0), stem="x")
    row = {
        "case": "c",
        **{name: f"c/x_{name}.nii.gz" for name in ("t1", "t1ce", "flair", "t2")},
        "truth": "c/x_seg.nii.gz",
    }
    (tmp_path / "m.json").write_bytes(json.dumps([row], indent=1).replace("\n", "\r\n").encode(encoding))
    assert files.read_json(tmp_path / "m.json", advice="") == [row]
    for mark in ",;\t":
        (tmp_path / "m.csv").write_bytes(f"{mark.join(row)}\r\n{mark.join(row.values())}\r\n".encode(encoding))
        for name in ("m.csv", "m.json"):
            assert [case.id for case in find_cases(tmp_path / name, labels="brats2021").cases] == ["c"]


# -- the same brain


@pytest.mark.parametrize("ending", [".nii.gz", ".nii"])
def test_the_same_brain_under_another_name_is_the_same_patient(tmp_path, ending):
    for name, seed in (("BraTS2021_00001", 1), ("BraTS2021_00002", 1), ("BraTS2021_00003", 3)):
        write_case(tmp_path / name, random_case(seed), ending=ending)
    a, b, c = find_cases(tmp_path).patients.values()
    assert a == b != c


def test_so_is_a_copy_whose_header_was_written_anew(tmp_path):
    for name, seed in (("BraTS2021_00001", 1), ("BraTS2021_00002", 1), ("BraTS2021_00003", 3)):
        write_case(tmp_path / "set" / name, random_case(seed))
    for path in (tmp_path / "set" / CASE).iterdir():
        save(np.asarray(nib.load(path).dataobj).astype(np.float32), path, AFFINE + np.eye(4)[3] * [[1], [2], [3], [0]])
    found = find_cases(tmp_path / "set")
    assert len(set(found.patients.values())) == 3
    built = cache.build(found.cases, found.schema, cube(16), directory=tmp_path / "cache", workers=1)
    a, b, c = found.with_same_brains(built.alike()).patients.values()
    assert a == b != c
    assert {CASE, "BraTS2021_00002"} <= set(found.with_same_brains(built.alike()).known_as["BraTS2021_00002"])


def test_unreadable_first_images_are_nobodys(tmp_path):
    for number in range(2):
        write_case(tmp_path / f"BraTS2021_0000{number}", random_case(number))
        scan(tmp_path, "t1", f"BraTS2021_0000{number}").unlink()
        scan(tmp_path, "t1", f"BraTS2021_0000{number}").symlink_to("nowhere")
    assert len(set(find_cases(tmp_path).patients.values())) == 2
    assert patients._checksum(scan(tmp_path, "t1", "BraTS2021_00000")) is None


# -- what --examine tells


def told(root: Path, tmp_path: Path) -> list[str]:
    cases, schema = layouts.find_cases(root)
    table = fingerprint.examine(cases, schema, directory=tmp_path / "f", workers=1)
    return [line for line in fingerprint.as_text(table).splitlines() if line.startswith("look at")]


@pytest.mark.parametrize("value", [1e7, -1e7])
def test_a_voxel_that_spoils_the_deviation_is_told(one, tmp_path, value):
    assert told(one, tmp_path) == []
    array = random_case(1)["t2"].astype(np.float32)
    array[10, 12, 9] = value
    save(array, scan(one))
    (line,) = told(one, tmp_path)
    assert line.startswith(f"look at {CASE}: t2 has a voxel of {value:g}, where 98 % of the brain lie between")


def test_a_background_that_is_not_0_is_told(one, tmp_path):
    for modality in ("t1", "t1ce", "flair", "t2"):
        save(random_case(1)[modality] - np.int16(1024), scan(one, modality))
    (line,) = told(one, tmp_path)
    assert line.startswith(f"look at {CASE}: its corners are -1024 in t1, -1024 in t1ce")
