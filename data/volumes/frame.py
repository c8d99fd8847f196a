"""Compares where the voxels of two files lie in the head: files of equal shape may be mirrored, shifted, or of other spacing."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from nibabel.affines import voxel_sizes
from nibabel.orientations import aff2axcodes, apply_orientation, inv_ornt_aff, io_orientation

from lms3d.data.errors import DataError

_TOLERANCE = 1e-3  # in voxels: far above the rounding of headers, and far below the precision of a drawn border
_SIZES_MM = (
    0.005,
    100.0,
)  # of a voxel: that of a microscope, and far above that of any scanner; others have a wrong unit
_FAR_MM = 1e6  # the largest coordinate of an origin
_FLAT = 1e-6  # the least volume of a voxel over the product of its edges

log = logging.getLogger("data")


def require_usable(path: Path, affine: np.ndarray, unit: str = "mm") -> None:
    """DataError if the affine (4, 4) of a file does not give every voxel a place of its own, or gives a size that no scan has.

    unit: that of the header, for the message. The affine is in millimetres.
    """
    sizes = voxel_sizes(affine) if np.isfinite(affine).all() else np.zeros(3)
    usable = sizes.all() and np.abs(affine[:3, 3]).max() < _FAR_MM
    if usable and not (_SIZES_MM[0] < sizes.min() and sizes.max() < _SIZES_MM[1]):
        raise DataError(
            f"{path}: found voxels of {_sizes(affine)} mm (the unit of its header is {unit}); expected sides between "
            f"{_SIZES_MM[0]:g} and {_SIZES_MM[1]:g} mm; correct the unit (xyzt_units) or the affine"
        )
    if not (usable and abs(np.linalg.det(affine[:3, :3] / sizes)) > _FLAT):
        raise DataError(
            f"{path}: found an affine that is not finite or has an axis without length; expected three directions of "
            "some millimetres per voxel; set its sform or qform"
        )


def require_same(path: Path, affine: np.ndarray, expected: np.ndarray, like: str, *, oriented: bool = True) -> None:
    """DataError if the voxels of a file run along other axes or steps than expected; a warning if only the origin differs.

    oriented: whether both headers say where their voxels lie. If not, there is only a warning.

    affine, expected: (4, 4), voxel indices -> millimetres, of the file and of `like`, which has the same shape.
    Files that differ only in the origin are in use (TCIA has such label maps); their voxels match one to one.
    """
    between = _between(affine, expected)
    if not oriented:
        if not _near(between, np.eye(4)):
            log.warning(
                f"{path}: found no orientation in its header or in that of {like} (sform_code and qform_code are 0); expected "
                f"{_axes(expected)}; voxels are taken to match one to one; save it with an affine if they do not"
            )
        return
    if not _near(between[:3, :3], np.eye(3)):
        found, wanted = _axes(affine), _axes(expected)
        raise DataError(
            f"{path}: found "
            f"{found if found != wanted else f'{found}, turned by {_degrees(affine, expected):.1f} degrees'}; "
            f"expected {wanted} as in {like}; resample it to that grid, or correct its header where the voxels do "
            "match"
        )
    if not _near(between[:3, 3], np.zeros(3)):
        log.warning(
            f"{path}: found origin {_point(affine)} mm; expected {_point(expected)} mm as in {like}; voxels are taken to "
            "match one to one; correct the header if they do, shift the file if not"
        )


def turn(
    affine: np.ndarray, shape: tuple[int, ...], expected: np.ndarray, wanted: tuple[int, ...]
) -> np.ndarray | None:
    """The orientation (3, 2), as in nibabel, that exchanges and reverses the axes of a file to match another file's. None if
    they match already, or if no such turn makes them match.

    affine, shape: of the file. expected, wanted: affine and shape of the other file. Both grids must cover exactly the same voxels
    in the head.
    """
    orientation = io_orientation(_between(affine, expected))
    if np.isnan(orientation).any() or (orientation == [[0, 1], [1, 1], [2, 1]]).all():
        return None
    turned = affine @ inv_ornt_aff(orientation, shape)
    order = np.argsort(orientation[:, 0]).astype(int)
    same_grid = tuple(shape[axis] for axis in order) == tuple(wanted) and _near(_between(turned, expected), np.eye(4))
    return orientation if same_grid else None


def turned(array: np.ndarray, orientation: np.ndarray | None) -> np.ndarray:
    """An array (X, Y, Z) after a `turn`: the same voxels in another order."""
    return array if orientation is None else apply_orientation(array, orientation)


def _between(affine: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The matrix (4, 4) from one file's voxel indices to the other's."""
    return np.linalg.solve(expected, affine)


def _near(values: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(values - expected).max() <= _TOLERANCE)


def _axes(affine: np.ndarray) -> str:
    return f"axes {''.join(aff2axcodes(affine))}, voxels of {_sizes(affine)} mm"


def _sizes(affine: np.ndarray) -> str:
    return " x ".join(f"{size:.4g}" for size in voxel_sizes(affine))


def _degrees(affine: np.ndarray, expected: np.ndarray) -> float:
    """The largest angle between an axis of one affine and the same axis of the other."""
    a, b = (matrix[:3, :3] / voxel_sizes(matrix) for matrix in (affine, expected))
    return float(np.degrees(np.arccos(np.clip((a * b).sum(axis=0).min(), -1, 1))))


def _point(affine: np.ndarray) -> str:
    return f"({', '.join(f'{round(float(value), 3):g}' for value in affine[:3, 3])})"
