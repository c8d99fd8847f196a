"""Folders of DICOM series as NIfTI files with a manifest, made once in the cache folder.

    DATA/CASE/CHANNEL/*        one series in each folder; CHANNEL is a name that the network knows: t1, flair, CT
    DATA/CHANNEL/*             one case, with the name of the folder DATA

    <cache>/dicom/<fingerprint>/manifest.csv               case and channels, for `lms3d.data.volumes.manifest`
                               /series.json                case -> {channel: folder of the series}
                               /<case>/<channel>.nii.gz

DICOM-1 All series of a case are on the grid of its first channel in sorted order: others are resampled linearly, and none is
        registered. Beyond a series lies its smallest value: air in a CT, whose 0 is water.
DICOM-2 No tag of a file goes into a NIfTI file: neither names nor dates.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import SimpleITK as sitk

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.errors import DataError
from lms3d.data.files import Progress

SERIES, MANIFEST = "series.json", "manifest.csv"
_MARK_AT = 128
_NEEDS_MARK = b"DICM"
_INDEXES = ("DICOMDIR",)
_OTHER_ENDINGS = (
    ".bat", ".csv", ".db", ".dll", ".doc", ".docx", ".exe", ".gif", ".htm", ".html", ".inf", ".ini", ".jpeg", ".jpg", ".json",
    ".log", ".md", ".pdf", ".png", ".rtf", ".txt", ".xml",
)  # fmt: skip
"""What CDs, viewers and people put beside series. A file of another name that cannot be read is a damaged one, and is refused."""


def is_dicom(folder: Path) -> bool:
    """Whether the first file below a folder is a DICOM file. Hidden files do not count."""
    first = next(_files(folder), None) if folder.is_dir() else None
    return first is not None and _is_dicom_file(first)


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
    for leaf in sorted({path.parent for path in _files(folder)}):
        if leaf == folder or len(leaf.relative_to(folder).parts) > 2:
            raise _wrong(leaf, "DICOM files there")
        case = folder.resolve().name if leaf.parent == folder else leaf.parent.name
        found.setdefault(case, {})[leaf.name] = leaf
    if not found:
        raise _wrong(folder, "no files")
    return found


def _convert(channels: Mapping[str, Path], target: Path) -> None:
    """Writes the series of a case as NIfTI files (DICOM-1, DICOM-2)."""
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
    try:
        return reader.Execute()
    except RuntimeError as error:
        said = str(error).strip().splitlines()[-1]
        raise DataError(
            f"{folder}: found a DICOM series that cannot be read ({said[:200]}); expected whole files; export it again"
        ) from None


def file_names(folder: Path) -> tuple[str, ...]:
    """The files of the one series in a folder, in the order of the third axis of its NIfTI file. DataError if there are several."""
    series = sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(folder))
    if len(series) != 1:
        raise _wrong(folder, f"{len(series)} DICOM series")
    names: tuple[str, ...] = sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder), series[0])
    return names


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
    digest = hashlib.sha256(b"format 2" + os.fsencode(folder.resolve()))
    for path in sorted(_files(folder)):
        about = path.stat()
        digest.update(repr((str(path.relative_to(folder)), about.st_size, about.st_mtime_ns)).encode())
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder, without hidden ones and files that are no images by their names."""
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(path, name) for name in sorted(names) if not _is_other(name))


def _is_other(name: str) -> bool:
    return name.startswith(".") or name.upper() in _INDEXES or name.lower().endswith(_OTHER_ENDINGS)


def _is_dicom_file(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(_MARK_AT + len(_NEEDS_MARK))[_MARK_AT:] == _NEEDS_MARK
    except OSError:
        return False


def _wrong(folder: Path, found: str) -> DataError:
    return DataError(
        f"{folder}: found {found}; expected one DICOM series in each folder, CASE/CHANNEL, or CHANNEL for one case; put each "
        "series into a folder with the name of its channel, such as t1"
    )
