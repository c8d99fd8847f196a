"""From the scanner's grid to a cube and back.

    images (X, Y, Z, 4) --crop to the foreground + 1 voxel--> box --[N4]--> box --resize each axis--> cube (N, N, N, 4)
    cube (N, N, N, ...) --resize each axis--> box --place--> native (X, Y, Z, ...)

The crop looks at the images only: a case without truth is cropped as one with truth, and the truth cannot leak into it.
`resize` is the only function of this project that resamples: data, predictions and comparisons all go through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import SimpleITK as sitk

from data.brats.schema import CHANNELS
from data.errors import DataError

N4_CHANNELS = ("t1", "t1ce", "t2")
"""FLAIR is left as it is: N4 would take part of the oedema for a bias field."""

_INTERPOLATORS = {"linear": sitk.sitkLinear, "nearest": sitk.sitkNearestNeighbor}
_N4_SHRINK = 4  # the field is smooth: found on every fourth voxel, applied to all


@dataclass(frozen=True, kw_only=True)
class Box:
    """A part of a grid: lower <= index < upper on each of three axes."""

    lower: tuple[int, int, int]
    upper: tuple[int, int, int]

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        a, b, c = (slice(low, high) for low, high in zip(self.lower, self.upper, strict=True))
        return a, b, c

    @property
    def shape(self) -> tuple[int, int, int]:
        a, b, c = (high - low for low, high in zip(self.lower, self.upper, strict=True))
        return a, b, c


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """What it takes to bring a cube back to the grid of the files."""

    shape: tuple[int, int, int]
    """Native grid, voxels."""
    affine: tuple[tuple[float, ...], ...]
    """Native voxel indices -> millimetres, 4 x 4, as in the first image."""
    box: Box
    """The part of the native grid that the cube covers."""

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "affine": [list(row) for row in self.affine],
            "box": [list(self.box.lower), list(self.box.upper)],
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> Geometry:
        lower, upper = (tuple(corner) for corner in value["box"])
        affine = tuple(tuple(float(number) for number in row) for row in value["affine"])
        return Geometry(shape=tuple(value["shape"]), affine=affine, box=Box(lower=lower, upper=upper))


def check_resolution(resolution: int) -> int:
    """`resolution` if a network with four halvings can take it; DataError otherwise."""
    if resolution < 16 or resolution % 16:
        nearest = max(16, 16 * round(resolution / 16))
        raise DataError(
            f"--resolution: found {resolution}; expected a multiple of 16, at least 16 "
            f"(the network halves the cube four times); use {nearest}"
        )
    return resolution


def resize(array: np.ndarray, shape: Sequence[int], interpolation: str = "linear") -> np.ndarray:
    """`array` (X, Y, Z) or (X, Y, Z, C) with its first three axes resampled to `shape`, each axis on its own.

    Both grids cover the same extent, edge to edge, so resizing there and back does not shift anything.
    interpolation: "linear" returns float32; "nearest" keeps the type (bool and integers up to 32 bits, floats).
    """
    if interpolation not in _INTERPOLATORS:
        raise ValueError(f"interpolation: {interpolation!r}; expected one of {', '.join(_INTERPOLATORS)}")
    target = tuple(int(size) for size in shape)
    values = array.astype(np.float32, copy=False) if interpolation == "linear" else array
    if values.shape[:3] == target:
        return values.copy()
    if values.ndim == 4:
        channels = [resize(values[..., index], target, interpolation) for index in range(values.shape[3])]
        return np.stack(channels, axis=-1)
    as_bool = values.dtype == bool
    image = sitk.GetImageFromArray(np.ascontiguousarray(values.view(np.uint8) if as_bool else values))
    resampled = sitk.GetArrayFromImage(_resampler(values.shape, target, interpolation).Execute(image))
    return resampled.astype(values.dtype, copy=False)


def _resampler(source: tuple[int, ...], target: tuple[int, ...], interpolation: str) -> Any:
    """ITK names axes in the opposite order to NumPy, hence the reversals."""
    spacing = [old / new for old, new in zip(source[::-1], target[::-1], strict=True)]
    resampler = sitk.ResampleImageFilter()
    resampler.SetSize(list(target[::-1]))
    resampler.SetOutputSpacing(spacing)
    resampler.SetOutputOrigin([(step - 1) / 2 for step in spacing])  # centre of the first new voxel, edges aligned
    resampler.SetInterpolator(_INTERPOLATORS[interpolation])
    resampler.UseNearestNeighborExtrapolatorOn()  # rounding may put a centre a hair outside; never fill with zeros
    return resampler


def foreground_box(images: np.ndarray) -> Box:
    """The voxels of images (X, Y, Z, C) where any channel differs from zero (|v| > 1e-5), plus one on each side."""
    foreground = np.zeros(images.shape[:3], bool)
    for index in range(images.shape[3]):  # one channel at a time: no temporary of the whole array
        foreground |= np.abs(images[..., index]) > 1e-5
    if not foreground.any():
        raise DataError("images: found nothing but zeros; expected a brain; replace the files")
    lower: list[int] = []
    upper: list[int] = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        used = np.flatnonzero(foreground.any(axis=others))
        lower.append(max(0, int(used[0]) - 1))
        upper.append(min(foreground.shape[axis], int(used[-1]) + 2))
    return Box(lower=(lower[0], lower[1], lower[2]), upper=(upper[0], upper[1], upper[2]))


def to_cube(
    images: np.ndarray, truth: np.ndarray | None, affine: np.ndarray, resolution: int, *, n4: bool = False
) -> tuple[np.ndarray, np.ndarray | None, Geometry]:
    """Images (X, Y, Z, 4) -> (N, N, N, 4) float32 linear; truth (X, Y, Z) -> (N, N, N) nearest; and the way back."""
    box = foreground_box(images)
    cube = (check_resolution(resolution),) * 3
    cropped = images[box.slices]
    if n4:
        cropped = correct_bias(cropped)
    rows = tuple(tuple(float(number) for number in row) for row in np.asarray(affine))
    shape = (images.shape[0], images.shape[1], images.shape[2])
    geometry = Geometry(shape=shape, affine=rows, box=box)
    small_truth = None if truth is None else resize(truth[box.slices], cube, "nearest")
    return resize(cropped, cube), small_truth, geometry


def to_native(cube: np.ndarray, geometry: Geometry) -> np.ndarray:
    """A cube back on the grid of the files; zero outside the box.

    cube: label map (N, N, N) of integers, nearest, type kept; or probabilities (N, N, N, C), linear, float32.
    """
    labels = cube.ndim == 3 and cube.dtype.kind in "iub"
    inside = resize(cube, geometry.box.shape, "nearest" if labels else "linear")
    native = np.zeros((*geometry.shape, *cube.shape[3:]), inside.dtype)
    native[geometry.box.slices] = inside
    return native


def correct_bias(images: np.ndarray) -> np.ndarray:
    """N4 bias field correction (Tustison et al., IEEE TMI 2010) of N4_CHANNELS of images (X, Y, Z, 4)."""
    corrected = images.astype(np.float32)  # a copy: the caller's images stay
    for index, channel in enumerate(CHANNELS):
        if channel in N4_CHANNELS:
            corrected[..., index] = _without_bias(corrected[..., index])
    return corrected


def _without_bias(array: np.ndarray) -> np.ndarray:
    """One channel (X, Y, Z) divided by its bias field. Zeros stay exact zeros."""
    mask = array > 1e-5
    image = sitk.GetImageFromArray(np.ascontiguousarray(array))
    n4 = sitk.N4BiasFieldCorrectionImageFilter()
    n4.SetMaximumNumberOfIterations([50, 50, 30, 20])
    small = [sitk.Shrink(one, [_N4_SHRINK] * 3) for one in (image, sitk.GetImageFromArray(mask.astype(np.uint8)))]
    n4.Execute(*small)
    field = np.exp(sitk.GetArrayFromImage(n4.GetLogBiasFieldAsImage(image)))
    return np.where(mask, array / field, array)
