"""Brings volumes from the scanner's grid to that of the network, and back.

    a cube     images (X, Y, Z, 4) --crop to the foreground + 1 voxel--> --[N4]--> --resize each axis--> (N, N, N, 4)
    a box      images (X, Y, Z, 4) --crop or pad around the brain's centre--> --[N4]--> (A, B, C, 4), at 1 mm
    and back   (A, B, C, ...) --resize each axis, if it was resized--> --place--> native (X, Y, Z, ...)

The crop depends only on the images. So a case without truth is cropped like one with truth, and the truth cannot leak into the
crop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from nibabel.affines import voxel_sizes

from lms3d.data.brats.bias_field import correct_bias
from lms3d.data.brats.geometry import Box, Geometry, Shape, centred_box, foreground_box
from lms3d.data.brats.resample import resize
from lms3d.data.brats.schema import CHANNELS
from lms3d.data.errors import DataError

DIVISOR = 16
"""Each axis must be a multiple of this, since the networks halve it four times."""

BOX_SPACING_MM = 1.0


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The preprocessing of every case."""

    shape: Shape
    """The shape of the network's grid, in voxels."""
    stretched: bool = True
    """Whether the brain fills the grid, with each axis stretched separately (a cube, as in the case study). If not, voxels are 1
    mm, and the brain lies in the middle."""
    n4: bool = False
    """Whether the bias fields of t1, t1ce and t2 are removed."""
    anti_alias: bool = False
    """Whether detail that is too fine for the grid is removed before the images are resized."""

    def __post_init__(self) -> None:
        check_shape(self.shape, "--resolution" if self.stretched else "--box")

    @property
    def name(self) -> str:
        """A name for folders that holds all of this: "192", "160x192x160-1mm", "144-n4-smooth"."""
        side = self.shape[0]
        grid = str(side) if self.stretched and self.shape == (side,) * 3 else "x".join(map(str, self.shape))
        parts = [grid, *(["1mm"] * (not self.stretched)), *(["n4"] * self.n4), *(["smooth"] * self.anti_alias)]
        return "-".join(parts)

    def box(self, images: np.ndarray, affine: np.ndarray) -> Box:
        """The part of the native grid of images (X, Y, Z, C) that the network's grid covers."""
        brain = foreground_box(images)
        return brain if self.stretched else centred_box(brain, self._extent(affine))

    def require_room(self, affine: np.ndarray, path: Path) -> None:
        """DataError if the part of the native grid that a box covers takes more memory than this machine has."""
        if self.stretched:
            return
        extent, memory_bytes = self._extent(affine), psutil.virtual_memory().total
        needed_bytes = math.prod(extent) * len(CHANNELS) * np.dtype(np.float32).itemsize
        if needed_bytes > memory_bytes:
            sizes, box = " x ".join(f"{mm:.4g}" for mm in voxel_sizes(affine)), "x".join(map(str, self.shape))
            raise DataError(
                f"{path}: found voxels of {sizes} mm, of which --box {box} covers {'x'.join(map(str, extent))}: "
                f"{needed_bytes / 2**30:,.0f} GiB; expected at most the {memory_bytes / 2**30:,.0f} GiB of this machine; correct "
                "the affine, resample the files, or choose a smaller box"
            )

    def _extent(self, affine: np.ndarray) -> list[int]:
        """The number of native voxels that a box of 1 mm voxels covers on each axis."""
        return [round(n * BOX_SPACING_MM / mm) for n, mm in zip(self.shape, voxel_sizes(affine), strict=True)]


def cube(resolution: int, **more: bool) -> Preprocessing:
    """The preprocessing of the case study: the brain is stretched to (N, N, N). DataError for a side that is no multiple of 16."""
    return Preprocessing(shape=(resolution,) * 3, **more)


def check_shape(shape: Sequence[int], option: str) -> None:
    """DataError if a network with four halvings cannot take the shape."""
    for size in shape:
        if size < DIVISOR or size % DIVISOR:
            nearest = max(DIVISOR, DIVISOR * round(size / DIVISOR))
            raise DataError(
                f"{option}: found {size}; expected a multiple of {DIVISOR}, at least {DIVISOR} "
                f"(the network halves each axis four times); use {nearest}"
            )


def to_grid(
    images: np.ndarray, truth: np.ndarray | None, affine: np.ndarray, how: Preprocessing
) -> tuple[np.ndarray, np.ndarray | None, Geometry]:
    """(images, truth, geometry) on the network's grid: images (X, Y, Z, 4) -> (*how.shape, 4) float32, linear; truth (X, Y, Z) ->
    how.shape, nearest. The geometry leads back."""
    box = how.box(images, affine)
    cropped = box.crop(images)
    if how.n4:
        cropped = correct_bias(cropped)
    rows = tuple(tuple(float(number) for number in row) for row in np.asarray(affine))
    shape = (images.shape[0], images.shape[1], images.shape[2])
    geometry = Geometry(shape=shape, affine=rows, box=box)
    small_truth = None if truth is None else resize(box.crop(truth), how.shape, "nearest")
    return resize(cropped, how.shape, anti_alias=how.anti_alias), small_truth, geometry


def to_native(grid: np.ndarray, geometry: Geometry) -> np.ndarray:
    """An array on the network's grid, brought back to the grid of the files, with zeros outside the box.

    grid: a label map (A, B, C) of integers (nearest; the type stays), or probabilities (A, B, C, channels) (linear; float32).
    """
    labels = grid.ndim == 3 and grid.dtype.kind in "iub"
    inside = resize(grid, geometry.box.shape, "nearest" if labels else "linear")
    return geometry.box.place(inside, geometry.shape)
