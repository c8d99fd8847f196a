"""Reading a label map that another program wrote, and laying it on the grid of the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from data.brats import frame, volume
from data.brats.case import nearness, scaling_in_words
from data.brats.header import Header, read_header
from data.brats.schema import LabelSchema
from data.errors import DataError
from lms3d.errors import InputError

_ROUNDING = 1e-3
"""Of a voxel."""


def affine_of(path: Path) -> np.ndarray:
    """Voxel indices -> millimetres (4, 4), by the header alone."""
    return read_header(path).affine


def is_oriented(path: Path) -> bool:
    """Whether the header says where the voxels lie."""
    return read_header(path).oriented


def read(
    path: Path,
    coding: LabelSchema,
    shape: tuple[int, ...],
    affine: np.ndarray,
    *,
    like: str,
    like_oriented: bool = True,
) -> np.ndarray:
    """Label map (X, Y, Z) uint8 on the grid of the truth `like`, which has that shape and affine.

    like_oriented: whether the truth's header says where its voxels lie. If either header does not, voxels are taken to match one
    to one, with a warning.
    A file whose voxels lie at the same places in another order (mirrored, axes swapped) is put in order. InputError for
    another grid, or for a value that `coding` does not know, or a file that cannot be used.
    """
    image, header = _open(path)
    oriented = header.oriented and like_oriented
    image = _in_order(image, affine) if oriented else image
    if image.shape[:3] != tuple(shape) or any(size != 1 for size in image.shape[3:]):
        raise InputError(
            f"{path}: found shape {_text(image.shape)}; expected {_text(shape)} as in {like}; resample it to that grid"
        )
    frame.require_same(path, np.asarray(image.affine, np.float64), affine, like, oriented=oriented)
    return _labels(path, image, coding, header.scale).reshape(shape)


def _in_order(image: Any, affine: np.ndarray) -> Any:
    """The image with its axes along those of `affine`, if then it is the same grid, origin and all; else as it is."""
    from nibabel.orientations import io_orientation, ornt_transform

    own, wanted = (io_orientation(one) for one in (image.affine, affine))
    if np.array_equal(own, wanted) or np.isnan(own).any():
        return image
    turned = image.as_reoriented(ornt_transform(own, wanted))
    # In voxels: nothing is left to turn or to shift.
    rest = np.linalg.solve(affine, turned.affine) - np.eye(4)
    return turned if np.abs(rest).max() < _ROUNDING else image


def _labels(path: Path, image: Any, coding: LabelSchema, scale: tuple[float, float]) -> np.ndarray:
    values = np.asanyarray(image.dataobj)
    whole = np.round(values) if values.dtype.kind == "f" else values
    if values.dtype.kind not in "iubf" or not (
        values.dtype.kind != "f" or np.abs(whole - values).max(initial=0) < nearness(scale)
    ):
        scaled = f" ({scaling_in_words(scale)})" if scale != (1, 0) else ""
        raise InputError(
            f"{path}: found values that are no whole numbers{scaled}; expected a label map; save labels, not probabilities"
        )
    outside = ~np.isin(whole, coding.values)
    if outside.any():
        raise InputError(
            f"{path}: found label {float(whole[outside][0]):g}; expected only {', '.join(map(str, coding.values))} (labels of "
            f"{coding.name}); name the coding of the predictions with --prediction-labels"
        )
    return whole.astype(np.uint8)


def _open(path: Path) -> tuple[Any, Header]:
    """The whole file and its header, with the bounds that scans have: somebody else wrote it."""
    from nibabel.spatialimages import SpatialImage

    try:
        array, header = volume.read(path)
    except DataError as error:
        found = str(error).partition("; expected")[0]
        raise InputError(f"{found}; expected a NIfTI label map; write it again") from None
    return SpatialImage(array, header.affine), header


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
