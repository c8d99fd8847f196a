"""One subject: which files it has, and reading them with every check that can be made.

Every function raises DataError for a file that cannot be used, and names that file.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError

from data.brats import frame
from data.brats.schema import CHANNELS, LabelSchema
from data.errors import DataError

_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, ImageFileError, HeaderDataError)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A subject's files."""

    id: str
    images: Mapping[str, Path]
    """Channel -> file, for each of CHANNELS."""
    truth: Path | None = None
    """The label map; None for a case that is only to be predicted."""
    volumes: Mapping[str, int] | None = None
    """Channel -> index on the fourth axis, where all channels are in one file."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the case once, in a fixed order."""
        paths = [self.images[channel] for channel in CHANNELS] + ([self.truth] if self.truth else [])
        return tuple(dict.fromkeys(paths))


def load_images(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The four modalities (X, Y, Z, 4) float32 in the order of CHANNELS, and the affine (4, 4) float64 of the first."""
    if case.volumes is not None:
        return _load_stacked(case.images[CHANNELS[0]], [case.volumes[channel] for channel in CHANNELS])
    images: np.ndarray | None = None
    for index, channel in enumerate(CHANNELS):
        path = case.images[channel]
        array, affine = _read(path, np.float32)
        if array.ndim != 3:
            raise DataError(f"{path}: found {array.ndim} axes; expected 3; give one volume per modality")
        if images is None:
            images = np.empty((*array.shape, len(CHANNELS)), np.float32)
            first_affine = affine
        if array.shape != images.shape[:3]:
            raise _shape_error(path, array.shape, images.shape[:3], CHANNELS[0])
        frame.require_same(path, affine, first_affine, CHANNELS[0])
        _require_finite(path, array)
        images[..., index] = array
    assert images is not None
    _require_content(case.images[CHANNELS[0]].parent, images)
    return images, first_affine


def load_truth(
    case: Case, schema: LabelSchema, shape: tuple[int, ...] | None = None, affine: np.ndarray | None = None
) -> np.ndarray | None:
    """The label map (X, Y, Z) uint8, or None for a case without one.

    shape, affine (4, 4): of the images, where the caller knows them. A value outside `schema` is an error.
    """
    if case.truth is None:
        return None
    array, own_affine = _read(case.truth, None)
    if array.ndim == 4 and array.shape[3] == 1:
        array = array[..., 0]
    if shape is not None and array.shape != tuple(shape):
        raise _shape_error(case.truth, array.shape, tuple(shape), "the images")
    if affine is not None:
        frame.require_same(case.truth, own_affine, affine, "the images")
    _require_finite(case.truth, array)
    outside = _values_outside(array, schema.values)
    if outside:
        raise DataError(
            f"{case.truth}: found label {', '.join(f'{value:g}' for value in outside)}; expected only "
            f"{', '.join(map(str, schema.values))} (labels of {schema.name}); name the set that the labels come from "
            "with --labels, or repair the file"
        )
    return array.astype(np.uint8)


def check_frames(case: Case) -> None:
    """Compare the frames of all files, as reading them does, by their headers alone: no voxel is read. DataError."""
    first_affine: np.ndarray | None = None
    for path in case.files:
        affine = np.asarray(_open(path).affine, np.float64)
        frame.require_usable(path, affine)
        if first_affine is None:
            first_affine = affine
        frame.require_same(path, affine, first_affine, "the images" if path == case.truth else CHANNELS[0])


def _load_stacked(path: Path, order: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Four modalities that share the file `path`; order: index on its fourth axis for each of CHANNELS."""
    array, affine = _read(path, np.float32)
    if array.ndim != 4 or array.shape[3] != len(order):
        raise DataError(
            f"{path}: found shape {_text(array.shape)}; expected four axes, {len(order)} modalities on the last; "
            "check that the file belongs to Task01_BrainTumour"
        )
    _require_finite(path, array)
    images = np.ascontiguousarray(array[..., order])
    _require_content(path, images)
    return images, affine


def _open(path: Path) -> Any:
    try:
        return nib.load(path)
    except FileNotFoundError:
        raise DataError(f"{path}: found nothing; expected a NIfTI file; check the data set") from None
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def _read(path: Path, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (as dtype; None keeps what the file has) and affine of a NIfTI file."""
    image = _open(path)
    try:
        array = np.asanyarray(image.dataobj) if dtype is None else np.asarray(image.dataobj, dtype=dtype)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None
    affine = np.asarray(image.affine, np.float64)
    frame.require_usable(path, affine)
    return array, affine


def _unreadable(path: Path, error: BaseException) -> Exception:
    return DataError(
        f"{path}: found a file that cannot be read ({error or type(error).__name__}); expected a complete NIfTI file "
        "(.nii or .nii.gz); copy or download it again"
    )


def _require_finite(path: Path, array: np.ndarray) -> None:
    if array.dtype.kind in "iub":
        return
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise DataError(
            f"{path}: found {bad} voxels that are NaN or infinite; expected finite numbers; repair the file"
        )


def _require_content(where: Path, images: np.ndarray) -> None:
    for index, channel in enumerate(CHANNELS):
        if not images[..., index].any():
            raise DataError(
                f"{where}: found modality {channel} with nothing but zeros; expected an image; replace the file or "
                "take the case out"
            )


def _values_outside(labels: np.ndarray, allowed: tuple[int, ...]) -> list[float]:
    """Up to five values of `labels` that are not allowed, sorted. One pass per allowed value beats sorting."""
    unknown = np.ones(labels.shape, bool)
    for value in allowed:
        unknown &= labels != value
    return [float(value) for value in np.unique(labels[unknown])[:5]] if unknown.any() else []


def _shape_error(path: Path, found: tuple[int, ...], expected: tuple[int, ...], like: str) -> Exception:
    return DataError(
        f"{path}: found shape {_text(found)}; expected {_text(expected)} as in {like}; register all files of the "
        "case to one grid"
    )


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
