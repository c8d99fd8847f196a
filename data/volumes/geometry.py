"""The part of the files' grid that a case is cut to, and its place in the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lms3d.data.errors import DataError

Shape = tuple[int, int, int]

_LONGEST_SIDE = 32767  # that a NIfTI file can have


@dataclass(frozen=True, kw_only=True)
class Box:
    """A part of a grid: lower <= index < upper on each of three axes. A box may reach beyond the grid."""

    lower: Shape
    upper: Shape

    @property
    def shape(self) -> Shape:
        a, b, c = (high - low for low, high in zip(self.lower, self.upper, strict=True))
        return a, b, c

    def crop(self, array: np.ndarray, beyond: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
        """The part of an array (X, Y, Z, ...) in the box. It is a view if nothing lies beyond the array.

        beyond: array -> the values (...) beyond it, in its type; None: zeros.
        """
        inside, within_box = self._overlap(array.shape)
        if self.shape == tuple(part.stop - part.start for part in inside):
            return array[inside]
        cropped = np.zeros((*self.shape, *array.shape[3:]), array.dtype)
        if beyond is not None:
            cropped[...] = beyond(array)
        cropped[within_box] = array[inside]
        return cropped

    def place(self, part: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """A part (of the box's shape, ...) placed on a grid of `shape`, with zeros elsewhere. Voxels beyond the grid are lost."""
        inside, within_box = self._overlap(shape)
        whole = np.zeros((*shape, *part.shape[3:]), part.dtype)
        whole[inside] = part[within_box]
        return whole

    def _overlap(self, shape: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The part of the box inside a grid, in the grid's indices and in the box's."""
        spans = [
            (min(max(low, 0), size), min(max(high, 0), size), low)
            for low, high, size in zip(self.lower, self.upper, shape[:3], strict=True)
        ]
        return (
            tuple(slice(start, max(start, stop)) for start, stop, _ in spans),
            tuple(slice(start - low, max(start, stop) - low) for start, stop, low in spans),
        )


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The geometry of a case, by which it is brought back to the grid of its files."""

    shape: Shape
    """The native grid, in voxels."""
    affine: tuple[tuple[float, ...], ...]
    """The affine from native voxel indices to millimetres, 4 x 4, of the first image."""
    box: Box
    """The part of the native grid that the network's grid covers."""

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "affine": [list(row) for row in self.affine],
            "box": [list(self.box.lower), list(self.box.upper)],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Geometry:
        """The geometry that `to_json` wrote. ValueError, TypeError or KeyError for a value that it cannot have written."""
        shape, *corners = (tuple(map(int, corner)) for corner in (value["shape"], *value["box"]))
        affine = np.array(value["affine"], float)
        if [len(corner) for corner in (shape, *corners)] != [3, 3, 3] or affine.shape != (4, 4):
            raise ValueError("found another number of axes; expected three")
        (x, y, z), (a, b, c), (d, e, f) = shape, *corners
        box = Box(lower=(a, b, c), upper=(d, e, f))
        if not (np.isfinite(affine).all() and all(1 <= side <= _LONGEST_SIDE for side in (x, y, z, *box.shape))):
            raise ValueError("found sides or an affine that no scan has")
        return Geometry(shape=(x, y, z), affine=tuple(map(tuple, affine.tolist())), box=box)

    def network_affine(self, shape: Sequence[int]) -> np.ndarray:
        """The affine (4, 4) from voxel indices of a network's grid of `shape` to millimetres, with which a viewer lays the grid
        over the native images."""
        lower, extent = np.array(self.box.lower, float), np.array(self.box.shape, float)
        scale = extent / np.array(shape[:3])
        to_native = np.eye(4)
        to_native[:3, :3] = np.diag(scale)
        to_native[:3, 3] = lower - 0.5 + scale / 2  # the edges of both grids coincide
        return np.array(self.affine) @ to_native


def foreground(images: np.ndarray) -> np.ndarray:
    """The mask (X, Y, Z) of the voxels of images (X, Y, Z, C) in which any channel differs from zero (|v| > 1e-5)."""
    inside = np.zeros(images.shape[:3], bool)
    for index in range(images.shape[3]):  # one channel at a time, without a temporary of the whole array
        inside |= np.abs(images[..., index]) > 1e-5
    return inside


def foreground_box(images: np.ndarray) -> Box:
    """The smallest box around the foreground of images (X, Y, Z, C), plus one voxel on each side."""
    inside = foreground(images)
    if not inside.any():
        raise DataError("images: found nothing but zeros; expected an image; replace the files")
    lower: list[int] = []
    upper: list[int] = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        used = np.flatnonzero(inside.any(axis=others))
        lower.append(max(0, int(used[0]) - 1))
        upper.append(min(inside.shape[axis], int(used[-1]) + 2))
    return Box(lower=(lower[0], lower[1], lower[2]), upper=(upper[0], upper[1], upper[2]))


def centred_box(around: Box, extent: Sequence[int]) -> Box:
    """The box of `extent` voxels with the centre of `around`, to half a voxel."""
    lower = [(a + b - size) // 2 for a, b, size in zip(around.lower, around.upper, extent, strict=True)]
    upper = [low + size for low, size in zip(lower, extent, strict=True)]
    return Box(lower=(lower[0], lower[1], lower[2]), upper=(upper[0], upper[1], upper[2]))
