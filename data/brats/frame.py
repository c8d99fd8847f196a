"""Where the voxels of a file lie in the head: two files of equal shape may be mirrored, of other spacing, or shifted."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from nibabel.affines import voxel_sizes
from nibabel.orientations import aff2axcodes

from data.errors import DataError

_TOLERANCE = 1e-3  # of a voxel: far above the rounding of headers, far below what a border is drawn to

log = logging.getLogger("data")


def require_usable(path: Path, affine: np.ndarray) -> None:
    """DataError where affine (4, 4) of `path` does not give every voxel a place of its own."""
    if not (np.isfinite(affine).all() and abs(np.linalg.det(affine[:3, :3])) > 1e-9):
        raise DataError(
            f"{path}: found an affine that is not finite or has an axis without length; expected three directions of "
            "some millimetres per voxel; set its sform or qform"
        )


def require_same(path: Path, affine: np.ndarray, expected: np.ndarray, like: str) -> None:
    """DataError where the voxels of `path` run along other axes or steps than expected; a warning for another origin.

    affine, expected: (4, 4), voxel indices -> millimetres, of `path` and of `like`, which has the same shape.
    Files whose origins alone differ are in use (TCIA has such label maps); their voxels match one to one.
    """
    between = np.linalg.solve(expected, affine)  # voxel indices of `path` -> those of `like`
    if np.abs(between[:3, :3] - np.eye(3)).max() > _TOLERANCE:
        found, wanted = _axes(affine), _axes(expected)
        raise DataError(
            f"{path}: found "
            f"{found if found != wanted else f'{found}, turned by {_degrees(affine, expected):.1f} degrees'}; "
            f"expected {wanted} as in {like}; resample it to that grid, or correct its header where the voxels do "
            "match"
        )
    if np.abs(between[:3, 3]).max() > _TOLERANCE:
        log.warning(
            f"{path}: found origin {_point(affine)} mm; expected {_point(expected)} mm as in {like}; voxels are taken to "
            "match one to one; correct the header if they do, shift the file if not"
        )


def _axes(affine: np.ndarray) -> str:
    sizes = " x ".join(f"{size:.4g}" for size in voxel_sizes(affine))
    return f"axes {''.join(aff2axcodes(affine))}, voxels of {sizes} mm"


def _degrees(affine: np.ndarray, expected: np.ndarray) -> float:
    """The largest angle between an axis of one and the same axis of the other."""
    a, b = (matrix[:3, :3] / voxel_sizes(matrix) for matrix in (affine, expected))
    return float(np.degrees(np.arccos(np.clip((a * b).sum(axis=0).min(), -1, 1))))


def _point(affine: np.ndarray) -> str:
    return f"({', '.join(f'{round(float(value), 3):g}' for value in affine[:3, 3])})"
