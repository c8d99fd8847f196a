"""Folders of DICOM series as NIfTI files with a manifest, made once in the cache folder.

    DATA/CASE/CHANNEL/*        one series in each folder; CHANNEL is a name that the network knows: t1, flair, CT
    DATA/CHANNEL/*             one case, with the name of the folder DATA

    <cache>/dicom/<fingerprint>/manifest.csv               case and channels, for `lms3d.data.volumes.manifest`
                               /series.json                case -> {channel: folder of the series}
                               /<case>/<channel>.nii.gz

DICOM-1 All series of a case are on the grid of its first channel in sorted order: others are resampled linearly, and none is
        registered. Beyond a series lies its smallest value: air in a CT, whose 0 is water.
DICOM-2 The slices of a series lie behind one another at equal distances, since a NIfTI file can say nothing else: a series with a
        gap, or of a tilted gantry, is refused.
DICOM-3 No tag of a file goes into a NIfTI file: neither names nor dates.
DICOM-4 No slice is lost in silence: GDCM passes over a damaged file, beside a pipe it may lose a slice, and beside a link to
        nothing it finds no series. Each is refused by its name, hidden ones too.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from lms3d.common.disk import cache_directory
from lms3d.data import files, pseudonyms
from lms3d.data.errors import DataError
from lms3d.data.files import Progress
from lms3d.data.volumes import manifest
from lms3d.data.volumes.header import ENDINGS

SERIES, MANIFEST = "series.json", "manifest.csv"
_MARK_AT = 128
_NEEDS_MARK = b"DICM"
_INDEXES = ("DICOMDIR",)
_OTHER_ENDINGS = (
    ".bat", ".csv", ".db", ".dll", ".doc", ".docx", ".exe", ".gif", ".htm", ".html", ".inf", ".ini", ".jpeg", ".jpg", ".json",
    ".log", ".md", ".pdf", ".png", ".rtf", ".txt", ".xml",
)  # fmt: skip
"""What CDs, viewers and people put beside series."""

_POSITION = "0020|0032"
_UNEVEN, _UNEVEN_MM = 0.01, 0.01
"""How far a distance between slices may be from the usual one: a share of it, and what positions lose where they are rounded."""


def is_dicom(folder: Path) -> bool:
    """Whether the first image below a folder is a DICOM file rather than a NIfTI file. Hidden files do not count."""
    for path in _files(folder) if folder.is_dir() else ():
        if path.name.endswith(ENDINGS):
            return False
        if _is_dicom_file(path):
            return True
    return False


def refuse(folder: Path) -> None:
    """DataError if a folder, in which no data set was found, holds DICOM files: a training needs label maps beside them."""
    if is_dicom(folder):
        raise DataError(
            f"{folder}: found DICOM series, which lms3d.predict alone reads; expected NIfTI files with their label maps; convert "
            "them, with dcm2niix for example"
        )


def manifest_of(folder: Path, progress: Progress | None = None) -> Path:
    """The manifest of the series below a folder. DataError if the folders are not as the head of this module draws them, or a
    series cannot be read."""
    series = _series(folder)
    target = cache_directory() / "dicom" / _fingerprint(folder)
    if not (target / MANIFEST).is_file():
        with files.reported_writes(target), files.new_directory(target) as partial:
            for done, (case, channels) in enumerate(series.items()):
                if progress is not None:
                    progress(done, len(series), "reading DICOM")
                _convert(channels, partial / case)
            files.write_json(partial / SERIES, _as_text(series))
            _write_manifest(partial / MANIFEST, series)
    return target / MANIFEST


def _series(folder: Path) -> dict[str, dict[str, Path]]:
    """Case -> channel -> the folder with the files of its series."""
    found: dict[str, dict[str, Path]] = {}
    for leaf in _leaves(folder):
        if leaf == folder or len(leaf.relative_to(folder).parts) > 2:
            raise _wrong(leaf, "DICOM files there")
        case = folder.resolve().name if leaf.parent == folder else leaf.parent.name
        pseudonyms.know([case])
        pseudonyms.know_path(leaf, folder)
        if not manifest.ID.fullmatch(case):
            raise DataError(f"{leaf.parent}: found case {case!r}; expected {manifest.ID_IN_WORDS}; rename this folder")
        found.setdefault(case, {})[leaf.name] = leaf
    if not found:
        raise _wrong(folder, "no files")
    return found


def _leaves(folder: Path) -> list[Path]:
    """The folders with files, sorted. One without a DICOM file counts if none lies below: its files may be damaged ones."""
    leaves = {path.parent for path in _files(folder)}
    above = {parent for leaf in leaves for parent in leaf.parents}
    return sorted(leaf for leaf in leaves if leaf not in above or any(map(_is_dicom_file, _files_in(leaf))))


def _convert(channels: Mapping[str, Path], target: Path) -> None:
    """Writes the series of a case as NIfTI files (DICOM-1 to DICOM-3)."""
    target.mkdir()
    grid: sitk.Image | None = None
    for channel, folder in sorted(channels.items()):
        image = sitk.Cast(_read(folder), sitk.sitkFloat32)
        grid = grid or image
        if not _same_grid(image, grid):
            beyond = float(sitk.GetArrayViewFromImage(image).min())
            image = sitk.Resample(image, grid, sitk.Transform(), sitk.sitkLinear, beyond)
        for key in image.GetMetaDataKeys():
            image.EraseMetaData(key)
        sitk.WriteImage(image, str(target / f"{channel}.nii.gz"))


def _read(folder: Path) -> sitk.Image:
    names = file_names(folder)
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(names)
    reader.MetaDataDictionaryArrayUpdateOn()
    warns = sitk.ProcessObject.GetGlobalWarningDisplay()
    sitk.ProcessObject.SetGlobalWarningDisplay(False)  # of uneven distances, which are refused below in one line
    try:
        image = reader.Execute()
    except RuntimeError as error:
        said = str(error).strip().splitlines()[-1]
        raise DataError(
            f"{folder}: found a DICOM series that cannot be read ({said[:200]}); expected whole files; export it again"
        ) from None
    finally:
        sitk.ProcessObject.SetGlobalWarningDisplay(warns)
    if (numbers := image.GetNumberOfComponentsPerPixel()) > 1:
        raise DataError(
            f"{folder}: found pixels of {numbers} numbers (colours) at {_place(np.array(image.GetOrigin()))}; expected one number "
            "for each; give the series that the scanner made, not pictures of it"
        )
    if len(names) == image.GetSize()[2] and all(reader.HasMetaDataKey(i, _POSITION) for i in range(len(names))):
        texts = [reader.GetMetaData(i, _POSITION).split("\\") for i in range(len(names))]
        _require_even(folder, names, np.array(texts, float), np.reshape(image.GetDirection(), (3, 3))[:, :2])
    return image


def _require_even(folder: Path, names: Sequence[str], positions: np.ndarray, axes: np.ndarray) -> None:
    """DataError unless slices lie as DICOM-2 says. positions: (slices, 3) in mm. axes: (3, 2), the directions within a slice."""
    if len(names) < 2:
        return
    # Two slices at one place are read in the order of other tags.
    along = np.argsort(positions @ np.cross(*axes.T), kind="stable")
    for order in (along, np.arange(len(names))):
        gaps_mm = np.linalg.norm(np.diff(positions[order], axis=0), axis=1)
        usual_mm = float(np.median(gaps_mm))
        allowed_mm = _UNEVEN * usual_mm + _UNEVEN_MM
        for first in np.flatnonzero(np.abs(gaps_mm - usual_mm) > allowed_mm)[:1]:
            one, other = (Path(names[order[index]]).name for index in (first, first + 1))
            raise DataError(
                f"{folder}: found slices {gaps_mm[first]:g} mm apart at {_place(positions[order[first]])} ({one} and {other}), "
                f"others {usual_mm:g} mm; expected equal distances; export the whole series, each slice once"
            )
    moved_mm = float(np.linalg.norm((positions - positions[0]) @ axes, axis=1).max()) / len(gaps_mm)
    if moved_mm > allowed_mm:
        degrees = np.degrees(np.arcsin(min(1.0, moved_mm / usual_mm)))
        raise DataError(
            f"{folder}: found slices that are moved sideways by {moved_mm:.3g} mm each, from {_place(positions[0])} to "
            f"{_place(positions[-1])}, as by a gantry tilted by {degrees:.1f} degrees; expected slices straight behind one "
            "another; resample the series, with dcm2niix for example"
        )


def _place(position: np.ndarray) -> str:
    """A position in mm as text."""
    return f"({', '.join(f'{number:g}' for number in position)}) mm"


def file_names(folder: Path) -> tuple[str, ...]:
    """The files of the one series in a folder, in the order of the third axis of its NIfTI file. DataError if there are several."""
    _require_regular_files(folder)
    series = sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(folder))
    if len(series) != 1:
        raise _wrong(folder, f"{len(series)} DICOM series")
    names: tuple[str, ...] = sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder), series[0])
    _require_all_slices(folder, names)
    return names


def _require_regular_files(folder: Path) -> None:
    """DataError for a pipe or a link to nothing among the slices (DICOM-4)."""
    for path in sorted(folder.iterdir()):
        if path.is_file() or path.is_dir():
            continue
        found = "no regular file" if path.exists() else "a link to nothing"
        raise DataError(f"{path}: found {found}; expected slices of a DICOM series; remove it, or restore the slice")


def _require_all_slices(folder: Path, names: Sequence[str]) -> None:
    """DataError for a file that looks like a slice and is none of `names` (DICOM-4)."""
    read = {Path(name).name for name in names}
    endings = {Path(name).suffix.lower() for name in names} - {""}
    for path in _files_in(folder):
        if path.name not in read and (path.suffix.lower() in endings or _is_dicom_file(path)):
            raise DataError(
                f"{path}: found a file that cannot be read as a slice of the series beside it; expected whole slices alone; export "
                "the series again, or remove this file"
            )


def _same_grid(one: sitk.Image, other: sitk.Image) -> bool:
    if one.GetSize() != other.GetSize():
        return False
    figures = [(*image.GetOrigin(), *image.GetSpacing(), *image.GetDirection()) for image in (one, other)]
    return all(abs(a - b) < 1e-3 for a, b in zip(*figures, strict=True))


def _write_manifest(path: Path, series: Mapping[str, Mapping[str, Path]]) -> None:
    channels = sorted({channel for of_case in series.values() for channel in of_case})
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["case", *channels])
        for case, of_case in series.items():
            table.writerow([case, *(f"{case}/{name}.nii.gz" if name in of_case else "" for name in channels)])


def _as_text(series: Mapping[str, Mapping[str, Path]]) -> dict[str, dict[str, str]]:
    return {case: {name: str(path.resolve()) for name, path in sorted(of.items())} for case, of in series.items()}


def _fingerprint(folder: Path) -> str:
    """A digest of the folder's place, and of the names, sizes and times of its files."""
    digest = hashlib.sha256(b"format 4" + os.fsencode(folder.resolve()))
    for path in sorted(_files(folder)):
        if not path.is_file():  # it is refused if it lies in a series
            continue
        about = path.stat()
        digest.update(repr((str(path.relative_to(folder)), about.st_size, about.st_mtime_ns)).encode())
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder, without hidden ones and files that are no images by their names."""
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(path, name) for name in sorted(names) if not _is_other(name))


def _files_in(folder: Path) -> list[Path]:
    """Like `_files`, for the folder itself alone."""
    return [path for path in sorted(folder.iterdir()) if path.is_file() and not _is_other(path.name)]


def _is_other(name: str) -> bool:
    return name.startswith(".") or name.upper() in _INDEXES or name.lower().endswith(_OTHER_ENDINGS)


def _is_dicom_file(path: Path) -> bool:
    try:
        if not path.is_file():  # opening a pipe might never return
            return False
        with path.open("rb") as file:
            return file.read(_MARK_AT + len(_NEEDS_MARK))[_MARK_AT:] == _NEEDS_MARK
    except OSError:
        return False


def _wrong(folder: Path, found: str) -> DataError:
    return DataError(
        f"{folder}: found {found}; expected one DICOM series in each folder, CASE/CHANNEL, or CHANNEL for one case; put each "
        "series into a folder with the name of its channel, such as t1"
    )
