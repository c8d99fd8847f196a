"""Resampling of arrays. `resize` is the only function of this project that resamples data, predictions and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import SimpleITK as sitk

_INTERPOLATORS = {"linear": sitk.sitkLinear, "nearest": sitk.sitkNearestNeighbor}


def resize(
    array: np.ndarray, shape: Sequence[int], interpolation: str = "linear", *, anti_alias: bool = False
) -> np.ndarray:
    """An array (X, Y, Z) or (X, Y, Z, C) with its first three axes resampled to `shape`, each axis separately.

    Both grids cover the same extent, edge to edge, so that resizing forth and back shifts nothing.
    interpolation: "linear" returns float32; "nearest" keeps the type (bool, integers up to 32 bits, floats).
    anti_alias: whether to remove detail first that is too fine for fewer voxels. For linear only; axes that grow are not changed.
    """
    if interpolation not in _INTERPOLATORS:
        raise ValueError(f"interpolation: {interpolation!r}; expected one of {', '.join(_INTERPOLATORS)}")
    target = tuple(int(size) for size in shape)
    values = array.astype(np.float32, copy=False) if interpolation == "linear" else array
    if values.shape[:3] == target:
        return values.copy()
    if values.ndim == 4:
        resized = (resize(values[..., i], target, interpolation, anti_alias=anti_alias) for i in range(values.shape[3]))
        return np.stack(list(resized), axis=-1)
    if anti_alias and interpolation == "linear":
        values = _smooth(values, target)
    as_bool = values.dtype == bool
    resampler, dtype = _resampler(values.shape, target, interpolation), values.dtype
    image = sitk.GetImageFromArray(np.ascontiguousarray(values.view(np.uint8) if as_bool else values))
    del values  # if it was smoothed, it is a copy of the whole
    image = resampler.Execute(image)  # the image before is freed
    return sitk.GetArrayFromImage(image).astype(dtype, copy=False)


def _smooth(values: np.ndarray, target: Sequence[int]) -> np.ndarray:
    """The values after a Gaussian low-pass, with sigma (f - 1) / 2 voxels if an axis shrinks by a factor f > 1 (scikit-image's
    rule)."""
    from scipy import ndimage

    sigma = [max(0.0, (old / new - 1) / 2) for old, new in zip(values.shape, target, strict=True)]
    return np.asarray(ndimage.gaussian_filter(values, sigma, mode="nearest")) if any(sigma) else values


def _resampler(source: tuple[int, ...], target: tuple[int, ...], interpolation: str) -> Any:
    """The resampler between two shapes. ITK orders axes in reverse to NumPy."""
    spacing = [old / new for old, new in zip(source[::-1], target[::-1], strict=True)]
    resampler = sitk.ResampleImageFilter()
    resampler.SetSize(list(target[::-1]))
    resampler.SetOutputSpacing(spacing)
    resampler.SetOutputOrigin(
        [(step - 1) / 2 for step in spacing]
    )  # the centre of the first new voxel, with edges aligned
    resampler.SetInterpolator(_INTERPOLATORS[interpolation])
    resampler.UseNearestNeighborExtrapolatorOn()  # rounding may put a centre just outside, which must not become 0
    return resampler
