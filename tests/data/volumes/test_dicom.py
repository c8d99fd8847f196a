"""Folders of DICOM series become NIfTI files with a manifest."""

from __future__ import annotations

import csv
import os
import re
import shutil

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk

from lms3d.data.brats.layouts import find_cases
from lms3d.data.errors import DataError
from lms3d.data.segmentation import layouts
from lms3d.data.volumes import dicom
from tests.caches import private_cache
from tests.data import dicom_series


def volume(shape=(6, 5, 4), spacing=(1.0, 2.0, 3.0), first=0):
    image = sitk.GetImageFromArray((np.arange(np.prod(shape)) + first).reshape(shape[::-1]).astype(np.int16))
    image.SetSpacing(spacing)
    image.SetOrigin((-10, 20, 5))
    return image


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Two cases; flair of the first is finer than t1."""
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path / "cache")))
    for number, case in enumerate(("anna", "bert")):
        dicom_series.write(volume(first=number), tmp_path / "study" / case / "t1", 2 * number)
    dicom_series.write(volume((12, 10, 8), (0.5, 1.0, 1.5)), tmp_path / "study" / "anna" / "flair", 9)
    return tmp_path / "study"


def test_series_are_channels_on_one_grid(study):
    assert dicom.is_dicom(study)
    manifest = dicom.manifest_of(study)
    with manifest.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["case"] for row in rows] == ["anna", "bert"]
    assert rows[0] == {"case": "anna", "flair": "anna/flair.nii.gz", "t1": "anna/t1.nii.gz"}
    assert rows[1]["flair"] == ""
    flair, t1 = (nib.load(manifest.parent / rows[0][name]) for name in ("flair", "t1"))
    assert flair.shape == t1.shape == (12, 10, 8)
    np.testing.assert_array_equal(flair.affine, t1.affine)
    other = nib.load(manifest.parent / rows[1]["t1"])
    np.testing.assert_array_equal(other.get_fdata().transpose(2, 1, 0), sitk.GetArrayFromImage(volume(first=1)))
    expected = [[-1, 0, 0, 10], [0, -2, 0, -20], [0, 0, 3, 5], [0, 0, 0, 1]]  # from left, posterior to right, anterior
    np.testing.assert_allclose(other.affine, expected)
    assert b"Doe" not in b"".join(path.read_bytes() for path in manifest.parent.rglob("*.nii.gz"))


def test_beyond_a_series_lies_its_smallest_value(tmp_path, monkeypatch):
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path / "cache")))
    dicom_series.write(volume((12, 10, 8)), tmp_path / "study" / "anna" / "a", 1)
    dicom_series.write(sitk.Crop(volume((12, 10, 8)) - 1000, [0] * 3, [6, 0, 0]), tmp_path / "study" / "anna" / "b", 2)
    (manifest,) = [dicom.manifest_of(tmp_path / "study")]
    part = nib.load(manifest.parent / "anna" / "b.nii.gz").get_fdata()
    assert part.shape == (12, 10, 8)
    assert (part[-5:] == part[:6].min()).all()
    assert part.min() < -900


def test_it_is_made_once_and_again_if_a_file_changes(study):
    manifest = dicom.manifest_of(study)
    (study / "bert" / "t1" / ".DS_Store").write_bytes(b"junk")
    assert dicom.manifest_of(study) == manifest
    next((study / "bert" / "t1").glob("*.dcm")).unlink()
    assert dicom.manifest_of(study) != manifest


def test_other_files_are_passed_over(study):
    """What a CD, Windows and people put beside series; the first file by name is none of a series."""
    rows = dicom.manifest_of(study).read_text()
    for place in (
        "AUTORUN.INF",
        "DICOMDIR",
        "anna/readme.txt",
        "anna/t1/Thumbs.db",
        "__MACOSX/anna/t1/._001.dcm",
        "viewer/a/b/c.exe",
    ):
        (study / place).parent.mkdir(parents=True, exist_ok=True)
        (study / place).write_bytes(b"no series")
    shutil.copyfile(next((study / "anna/t1").glob("*.dcm")), study / "DICOMDIR")
    assert dicom.is_dicom(study)
    assert dicom.manifest_of(study).read_text() == rows


@pytest.mark.parametrize("find", [find_cases, layouts.find])
def test_who_trains_on_series_is_told_to_convert_them(study, find):
    with pytest.raises(
        DataError, match=r"study: found DICOM series, which lms3d.predict alone reads; expected NIfTI files"
    ):
        find(study)


def test_one_case_alone_has_the_name_of_the_folder(study):
    assert (
        next(csv.DictReader(dicom.manifest_of(study / "anna").open()))["case"],
        dicom.manifest_of(study / "anna").read_text().splitlines()[0].split(",")[1],
    ) == ("anna", "flair")


@pytest.mark.parametrize("missing", [["002"], ["002", "003"]])
def test_a_series_with_a_gap_is_refused(study, missing):
    """ITK takes the distance of the first two slices for all of them, so the volume would be too short, or stretched."""
    folder = study / "bert" / "t1"
    shutil.rmtree(folder)
    dicom_series.write(volume((6, 5, 8)), folder, 2)
    for name in missing:
        (folder / f"{name}.dcm").unlink()
    gap = 3 * (len(missing) + 1)
    with pytest.raises(DataError, match=rf"t1: found slices {gap} mm apart at \(.*5\) mm \(001.dcm and .*others 3 mm"):
        dicom.manifest_of(study)


def test_slices_at_one_place_are_refused(study):
    folder = study / "bert" / "t1"
    shutil.rmtree(folder)
    dicom_series.write(volume((6, 5, 8)), folder, 2)
    image = sitk.ReadImage(str(folder / "003.dcm"))
    image.SetMetaData("0008|0018", "1.2.3.4.2.99")
    dicom_series.write_slice(image, folder / "again.dcm")
    with pytest.raises(DataError, match=r"t1: found slices 0 mm apart at \(.*11\) mm .*each slice once"):
        dicom.manifest_of(study)


def test_a_tilted_gantry_is_refused_and_rounding_is_none(study):
    for sideways_mm in (0.008, 0.5):
        shutil.rmtree(study / "bert" / "t1")
        dicom_series.write(volume((6, 5, 8)), study / "bert" / "t1", 2, sideways_mm=sideways_mm)
        if sideways_mm < 0.1:
            dicom.manifest_of(study)
    with pytest.raises(
        DataError, match=r"t1: found slices that are moved sideways by 0.5 mm each, from .* tilted by 9.5 degrees"
    ):
        dicom.manifest_of(study)


def test_a_tilted_head_is_no_tilted_gantry(tmp_path, monkeypatch):
    """Slices whose normal is no axis of the scanner, each straight behind the one before."""
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path / "cache")))
    image, angle = volume((6, 5, 8)), 0.3
    image.SetDirection((1, 0, 0, 0, np.cos(angle), -np.sin(angle), 0, np.sin(angle), np.cos(angle)))
    dicom_series.write(image, tmp_path / "study" / "anna" / "t1", 1)
    assert dicom.manifest_of(tmp_path / "study").is_file()


def test_pictures_in_colour_are_refused(study):
    for index, path in enumerate(sorted((study / "bert" / "t1").glob("*.dcm"))):
        grey = sitk.ReadImage(str(path))
        colour = sitk.Compose(*[sitk.Cast(grey[:, :, 0], sitk.sitkUInt8)] * 3)
        for key in (
            "0008|0016",
            "0008|0060",
            "0020|000d",
            "0020|000e",
            "0020|0032",
            "0020|0037",
            "0020|0052",
            "0018|0088",
        ):
            colour.SetMetaData(key, grey.GetMetaData(key))
        colour.SetMetaData("0020|0013", str(index + 1))
        dicom_series.write_slice(colour, path)
    with pytest.raises(DataError, match=r"t1: found pixels of 3 numbers \(colours\) at \(.*\) mm; expected one number"):
        dicom.manifest_of(study)


def test_a_folder_whose_name_is_no_id_is_named_itself(study):
    (study / "bert").rename(study / "Doe^Jane (1)")
    with pytest.raises(
        DataError, match=r"study/Doe\^Jane \(1\): found case 'Doe.*'; expected a name of letters.*rename this folder"
    ):
        dicom.manifest_of(study)


def test_a_note_without_an_ending_does_not_hide_the_series(study):
    (study / "ABOUT").write_text("from the archive")
    (study / "anna" / "ABOUT").write_text("first visit")
    assert dicom.is_dicom(study)
    assert {row["case"] for row in csv.DictReader(dicom.manifest_of(study).open())} == {"anna", "bert"}


def test_nifti_files_beside_a_stray_slice_are_no_series(study):
    (study / "anna" / "a.nii.gz").write_bytes(b"first by name")
    assert not dicom.is_dicom(study)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["004b", ".lock"])
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "link to nothing", "link to itself"])
def test_a_pipe_or_a_broken_link_among_the_slices_is_named(study, name, kind):
    """Beside the first GDCM may lose a slice, beside the second it finds none. Editors leave hidden links to nothing as locks."""
    path = study / "bert" / "t1" / name
    if kind == "pipe":
        os.mkfifo(path)
    else:
        os.mkfifo(study.parent / "pipe")
        path.symlink_to(
            {"link to a pipe": study.parent / "pipe", "link to nothing": "gone", "link to itself": name}[kind]
        )
    found = "no regular file" if "pipe" in kind else "a link to nothing"
    with pytest.raises(DataError, match=rf"bert/t1/{re.escape(name)}: found {found}; expected slices"):
        dicom.manifest_of(study)


@pytest.mark.timeout(60)
def test_a_pipe_or_a_broken_link_elsewhere_is_no_concern(study):
    os.mkfifo(study / "pipe")
    (study / "bert" / "note").symlink_to("gone")
    assert dicom.is_dicom(study)
    assert dicom.manifest_of(study).is_file()


@pytest.mark.parametrize("bytes_left", [-20, 200, 10, 0])
def test_a_damaged_slice_at_the_end_is_not_lost_in_silence(study, bytes_left):
    """One in the middle leaves a gap; of the last one nothing told."""
    path = study / "bert" / "t1" / "004.dcm"
    path.write_bytes(path.read_bytes()[:bytes_left])
    with pytest.raises(DataError, match=r"t1/004\.dcm: found a file that cannot be read as a slice"):
        dicom.manifest_of(study)


def test_what_cannot_be_used_is_named(study):
    dicom_series.write(volume(), study / "more", 30)
    for path in (study / "more").iterdir():
        path.rename(study / "bert" / "t1" / f"more{path.name}")
    (study / "more").rmdir()
    with pytest.raises(DataError, match=r"bert/t1: found 2 DICOM series; expected one DICOM series in each folder"):
        dicom.manifest_of(study)
    (study / "loose.dcm").write_bytes((study / "anna" / "t1" / "001.dcm").read_bytes())
    with pytest.raises(DataError, match=r"study: found DICOM files there; expected one"):
        dicom.manifest_of(study)
    assert not dicom.is_dicom(study.parent / "nowhere")
