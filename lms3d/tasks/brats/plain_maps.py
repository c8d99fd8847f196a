"""Reads a label map that another program wrote, and puts it on the grid of the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lms3d.data.brats import frame, volume
from lms3d.data.brats.case import nearness, scaling_in_words
from lms3d.data.brats.header import Header, read_header
from lms3d.data.brats.schema import LabelSchema
from lms3d.data.errors import DataError
from lms3d.errors import InputError

_ROUNDING = 1e-3
"""The part of a voxel by which two grids may differ and still be the same."""


def affine_of(path: Path) -> np.ndarray:
    """The affine (4, 4) from voxel indices to millimetres, from the header alone."""
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
    """The label map (X, Y, Z) uint8 on the grid of the truth, which has that shape and affine. like: names the truth in messages.

    like_oriented: whether the truth's header says where its voxels lie. If one of the two headers does not, voxels are assumed to
    match one to one, with a warning.
    A file whose voxels lie at the same places in another order (mirrored, axes swapped) is put in order. InputError for another
    grid, for a value that `coding` does not know, and for a file that cannot be used.
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
    """The image with its axes in the order of `affine`, if that makes the grids equal, origin included; otherwise unchanged."""
    from nibabel.orientations import io_orientation, ornt_transform

    own, wanted = (io_orientation(one) for one in (image.affine, affine))
    if np.array_equal(own, wanted) or np.isnan(own).any():
        return image
    turned = image.as_reoriented(ornt_transform(own, wanted))
    # In voxels: what is left to turn or to shift, which must be nothing.
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
    """The whole file and its header, within the bounds of scans: another program wrote it."""
    from nibabel.spatialimages import SpatialImage

    try:
        array, header = volume.read(path)
    except DataError as error:
        found = str(error).partition("; expected")[0]
        raise InputError(f"{found}; expected a NIfTI label map; write it again") from None
    return SpatialImage(array, header.affine), header


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
