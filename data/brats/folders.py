"""The folders of a data set that hold images, and the names of their files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lms3d.data import pseudonyms
from lms3d.data.brats import msd, published
from lms3d.data.errors import DataError
from lms3d.data.volumes.case import Case
from lms3d.data.volumes.header import ENDINGS


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yields the folders below `root` that hold NIfTI files, with the names of these files, and of files with an ending in
    capitals, which nothing reads. Links are followed once.

    A folder that stands for a file (see `_inner`) counts as that file. Test images beside training images are left out.
    """
    seen: set[str] = set()
    for folder, below, names in os.walk(root, followlinks=True, onerror=_unreadable):
        real = os.path.realpath(folder)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        current = Path(os.path.abspath(folder))
        for path in (current, *(current / name for name in below)):
            pseudonyms.know_path(path, root)
        wrappers = {name for name in below if name.endswith(ENDINGS) and _inner(current / name)}
        trains = msd.TRAINING in below and any((current / msd.TRAINING).glob("BRATS_*.nii*"))
        left_out = wrappers | ({msd.TEST} if trains else set())
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in left_out)
        nifti = sorted(name for name in {*names, *wrappers} if name.endswith(ENDINGS) and not name.startswith("."))
        capitals = [name for name in sorted(names) if name.lower().endswith(ENDINGS) and not name.endswith(ENDINGS)]
        if nifti or capitals:
            _require_usable_set(current, nifti)
            yield current, nifti, [name for name in capitals if not name.startswith(".")]


def _inner(folder: Path) -> Path | None:
    """The file that a folder stands for; None for other folders. Mirrors of 2021 have
    BraTS2021_00000_flair.nii/00000057_brain_flair.nii."""
    inner = [path for path in folder.glob("*.nii*") if path.name.endswith(ENDINGS) and not path.name.startswith(".")]
    return inner[0] if len(inner) == 1 and inner[0].is_file() else None


def unwrapped(case: Case) -> Case:
    """The case with files in place of the folders that stand for them."""

    def inner(path: Path) -> Path:
        return (_inner(path) or path) if path.is_dir() else path

    images: Mapping[str, Path] = {channel: inner(path) for channel, path in case.images.items()}
    return replace(case, images=images, truth=case.truth and inner(case.truth))


def _require_usable_set(folder: Path, files: Sequence[str]) -> None:
    for pattern, what, expected in published.REFUSED:
        if any(pattern.match(name) for name in files):
            raise DataError(
                f"{folder}: found {what}; expected {expected}; leave it out, or give the folder of another set"
            )


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: found {error.strerror}; expected a readable folder; check its permissions")
