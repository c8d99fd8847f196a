"""Brings volumes from the scanner's grid to that of the network, and back.

    stretched  images (X, Y, Z, C) --crop to the foreground + 1 voxel--> --resize each axis--> (A, B, C, channels)
    a box      images (X, Y, Z, C) --crop or pad around the foreground's centre--> --resample to a spacing--> (A, B, C, channels)
    own shape  images (X, Y, Z, C) --crop to the foreground + 1 voxel--> --resample to a spacing--> as many voxels as that takes
    and back   (A, B, C, ...) --resize each axis, if it was resized--> --place--> native (X, Y, Z, ...)

The crop depends only on the images. So a case without truth is cropped like one with truth, and the truth cannot leak into the
crop.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
from nibabel.affines import voxel_sizes

from lms3d.data.errors import DataError
from lms3d.data.volumes.geometry import Box, Geometry, Shape, centred_box, foreground_box
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.resample import resize

DIVISOR = 16
"""Each axis must be a multiple of this, since the networks halve it four times."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The preprocessing of every case."""

    shape: Shape | None
    """The shape of the network's grid, in voxels. None: each case has as many voxels as its foreground takes."""
    stretched: bool = True
    """Whether the foreground fills the grid, with each axis stretched separately. If not, voxels have a fixed size, and the
    foreground lies in the middle."""
    spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """The size of a voxel, unless the foreground is stretched."""
    anti_alias: bool = False
    """Whether detail that is too fine for the grid is removed before the images are resized."""

    divisor: ClassVar[int] = DIVISOR
    """Each side must be a multiple of this."""

    def __post_init__(self) -> None:
        if self.shape is not None:
            check_shape(self.shape, "--resolution" if self.stretched else "--box", self.divisor)

    @property
    def name(self) -> str:
        """A name for folders that holds all of this: "192", "160x192x160-1mm", "144-smooth"."""
        return "-".join([*self._grid_name(), *(["smooth"] * self.anti_alias)])

    def _grid_name(self) -> list[str]:
        spacing = "x".join(f"{mm:g}" for mm in self.spacing_mm[: 1 if len(set(self.spacing_mm)) == 1 else 3])
        if self.shape is None:
            return [f"{spacing}mm"]
        side = self.shape[0]
        grid = str(side) if self.stretched and self.shape == (side,) * 3 else "x".join(map(str, self.shape))
        return [grid, *([f"{spacing}mm"] * (not self.stretched))]

    @property
    def in_words(self) -> str:
        """The network's grid, for messages: "192x192x192"."""
        return "x".join(map(str, self.shape)) if self.shape else f"voxels of {self._grid_name()[0]}"

    def to_json(self) -> dict[str, Any]:
        """What the index of a cache says of it."""
        raise NotImplementedError

    def corrected(self, channel: np.ndarray, index: int) -> np.ndarray:
        """A cropped channel (X, Y, Z), before it is resized. index: its place among the channels of the images."""
        return channel

    def beyond(self, images: np.ndarray) -> np.ndarray:
        """The values (C,) of voxels beyond the scan, in a box that is larger."""
        return np.zeros(images.shape[3], images.dtype)

    def facts(
        self, images: np.ndarray, truth: np.ndarray | None, stored: np.ndarray, scale: np.ndarray, schema: LabelSchema
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a cache keeps of a case besides its volumes: (JSON values, file name -> array).

        images (X, Y, Z, C) and truth (X, Y, Z) on the native grid; stored (A, B, C, channels) float16 * scale (channels,): the
        images on the network's.
        """
        return {}, {}

    def box(self, images: np.ndarray, affine: np.ndarray) -> Box:
        """The part of the native grid of images (X, Y, Z, C) that the network's grid covers."""
        foreground = foreground_box(images)
        return foreground if self.stretched or self.shape is None else centred_box(foreground, self._extent(affine))

    def grid_shape(self, native: Sequence[int], affine: np.ndarray) -> Shape:
        """The shape of the network's grid over a part of the native grid with the shape `native`."""
        if self.shape is not None:
            return self.shape
        sizes = zip(native, voxel_sizes(affine), self.spacing_mm, strict=True)
        a, b, c = (max(1, round(n * mm / new)) for n, mm, new in sizes)
        return a, b, c

    def require_room(self, shape: Sequence[int], affine: np.ndarray, path: Path) -> None:
        """DataError if the part of the native grid that the network's grid covers, or that grid, takes more memory than this
        machine has. shape, affine: of the images (X, Y, Z, C)."""
        if self.stretched:
            return
        extent = self.grid_shape(shape[:3], affine) if self.shape is None else self._extent(affine)
        memory_bytes = psutil.virtual_memory().total
        needed_bytes = math.prod(extent) * shape[3] * np.dtype(np.float32).itemsize
        if needed_bytes > memory_bytes:
            sizes = " x ".join(f"{mm:.4g}" for mm in voxel_sizes(affine))
            covers = "--spacing" if self.shape is None else f"--box {'x'.join(map(str, self.shape))}"
            raise DataError(
                f"{path}: found voxels of {sizes} mm, of which {covers} covers {'x'.join(map(str, extent))}: "
                f"{needed_bytes / 2**30:,.0f} GiB; expected at most the {memory_bytes / 2**30:,.0f} GiB of this machine; correct "
                "the affine, resample the files, or choose a smaller box"
            )

    def _extent(self, affine: np.ndarray) -> list[int]:
        """The number of native voxels that a box covers on each axis."""
        assert self.shape is not None
        sizes = zip(self.shape, self.spacing_mm, voxel_sizes(affine), strict=True)
        return [max(1, round(n * new / mm)) for n, new, mm in sizes]


def check_shape(shape: Sequence[int], option: str, divisor: int = DIVISOR) -> None:
    """DataError if the networks cannot halve the sides of a shape as often as they do."""
    times = {16: "four times"}.get(divisor, "at least once")
    for size in shape:
        if size < divisor or size % divisor:
            nearest = max(divisor, divisor * round(size / divisor))
            raise DataError(
                f"{option}: found {size}; expected a multiple of {divisor}, at least {divisor} "
                f"(the network halves each axis {times}); use {nearest}"
            )


def to_grid(
    images: np.ndarray, truth: np.ndarray | None, affine: np.ndarray, how: Preprocessing
) -> tuple[Iterator[np.ndarray], np.ndarray | None, Geometry]:
    """(channels, truth, geometry) on the network's grid: of images (X, Y, Z, C) each channel (A, B, C) float32, linear, made when
    it is asked for; truth (X, Y, Z) -> (A, B, C), nearest. The geometry leads back."""
    box = how.box(images, affine)
    rows = tuple(tuple(float(number) for number in row) for row in np.asarray(affine))
    shape = (images.shape[0], images.shape[1], images.shape[2])
    geometry = Geometry(shape=shape, affine=rows, box=box)
    target = how.grid_shape(box.shape, affine)
    small_truth = None if truth is None else resize(box.crop(truth), target, "nearest")

    def channels() -> Iterator[np.ndarray]:
        for index in range(images.shape[3]):
            cropped = box.crop(images[..., index : index + 1], how.beyond)[..., 0]
            yield resize(how.corrected(cropped, index), target, anti_alias=how.anti_alias)

    return channels(), small_truth, geometry


def to_native(grid: np.ndarray, geometry: Geometry) -> np.ndarray:
    """An array on the network's grid, brought back to the grid of the files, with zeros outside the box.

    grid: a label map (A, B, C) of integers (nearest; the type stays), or probabilities (A, B, C, channels) (linear; float32).
    """
    labels = grid.ndim == 3 and grid.dtype.kind in "iub"
    inside = resize(grid, geometry.box.shape, "nearest" if labels else "linear")
    return geometry.box.place(inside, geometry.shape)
