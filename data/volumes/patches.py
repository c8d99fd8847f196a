"""Patches of a volume: how training draws them, and how the prediction for a volume is composed from them.

A prediction slides a window with Gaussian weights over the volume, as in nnU-Net (Isensee et al., Nature Methods 2021). Windows
overlap by half, and each has most weight in its middle, where the network sees most of the surroundings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from lms3d.data.errors import DataError
from lms3d.data.volumes.geometry import Box, Shape

FOREGROUND_SHARE = 1 / 3
"""The share of training patches that are drawn around a voxel of the foreground, as in nnU-Net; the others lie anywhere."""
OVERLAP = 0.5
SIGMA_SHARE = 1 / 8
"""The standard deviation of the weights, as a share of the window."""


def check_patch(patch: Sequence[int], shape: Sequence[int]) -> None:
    """DataError for a patch that is larger than the volume."""
    if any(size > whole for size, whole in zip(patch, shape, strict=True)):
        sizes, volume = ("x".join(map(str, sides)) for sides in (patch, shape))
        raise DataError(f"--patch: found {sizes}; expected at most the volume, {volume}; choose a smaller patch")


def random_patch(truth: np.ndarray, patch: Shape, random: np.random.Generator, *, evenly: bool = False) -> Box:
    """Draws a patch of a label map (A, B, C): around a random voxel of the foreground in FOREGROUND_SHARE of the draws, else
    anywhere.

    evenly: draw a label of the map first, then one of its voxels. A patch that is larger than the map lies around it.
    """
    foreground = np.empty(0, np.intp)
    if random.random() < FOREGROUND_SHARE:
        wanted = _random_label(truth, random) if evenly else None
        foreground = np.flatnonzero(truth if wanted is None else truth == wanted)
    if foreground.size:
        voxel = np.unravel_index(foreground[random.integers(foreground.size)], truth.shape)
        return _inside(
            [int(v) - int(random.integers(size)) for v, size in zip(voxel, patch, strict=True)], patch, truth.shape
        )
    room = (max(0, whole - size) for whole, size in zip(truth.shape, patch, strict=True))
    return _inside([int(random.integers(most + 1)) for most in room], patch, truth.shape)


def _random_label(truth: np.ndarray, random: np.random.Generator) -> int | None:
    """A label of the foreground, each with the same chance. None if there is none."""
    labels = np.flatnonzero(np.bincount(truth.reshape(-1), minlength=1)[1:]) + 1
    return int(labels[random.integers(labels.size)]) if labels.size else None


def _inside(lower: Sequence[int], patch: Shape, shape: Sequence[int]) -> Box:
    """The box of a patch's size that begins at `lower`, or as near to it as the volume allows. On an axis on which the patch is
    larger than the volume, the volume lies in its middle."""
    a, b, c = (
        min(max(low, 0), whole - size) if whole >= size else -((size - whole) // 2)
        for low, size, whole in zip(lower, patch, shape, strict=True)
    )
    return Box(lower=(a, b, c), upper=(a + patch[0], b + patch[1], c + patch[2]))


def windows(shape: Shape, patch: Shape) -> list[Box]:
    """Evenly spread windows that cover a volume of `shape`. Each overlaps the next by at least OVERLAP."""
    check_patch(patch, shape)
    return [_inside(lower, patch, shape) for lower in itertools.product(*map(_starts, shape, patch))]


def window_count(shape: Shape, patch: Shape) -> int:
    """The number of windows over a volume of `shape`, which may be smaller than the patch."""
    return math.prod(len(_starts(max(whole, size), size)) for whole, size in zip(shape, patch, strict=True))


def _starts(whole: int, size: int) -> list[int]:
    """The first voxels of the windows along one axis."""
    count = 1 + int(np.ceil((whole - size) / (size * (1 - OVERLAP))))
    return sorted({round(place) for place in np.linspace(0, whole - size, count)})


@lru_cache(maxsize=2)
def weights(patch: Shape) -> np.ndarray:
    """The weights of a window, (*patch, 1) float32: 1 in the middle, and never so small that rounding would lose a corner of the
    volume."""
    axes = [np.exp(-0.5 * ((np.arange(size) - (size - 1) / 2) / (SIGMA_SHARE * size)) ** 2) for size in patch]
    product = axes[0][:, None, None] * axes[1][:, None] * axes[2]
    return np.maximum(product, 1e-4).astype(np.float32)[..., np.newaxis]


def sum_of_weights(shape: Shape, patch: Shape, start: int, stop: int) -> np.ndarray:
    """The sum of the weights of all windows over a volume of `shape`, in planes of its third axis: (A, B, stop - start, 1)."""
    total, weight = np.zeros((*shape[:2], stop - start, 1), np.float32), weights(patch)
    for box in windows(shape, patch):
        low, high = max(box.lower[2], start), min(box.upper[2], stop)
        if low < high:
            (a, b, c), (d, e, _) = box.lower, box.upper
            total[a:d, b:e, low - start : high - start] += weight[:, :, low - c : high - c]
    return total


def room(shape: Shape, patch: Shape) -> Box:
    """The smallest box around a volume of `shape` that has room for a patch. The volume lies in its middle."""
    a, b, c = (max(size, whole) for size, whole in zip(patch, shape, strict=True))
    return _inside((0, 0, 0), (a, b, c), shape)


def smallest(image: np.ndarray) -> np.ndarray:
    """The smallest value of each channel of an image (A, B, C, channels): air in a CT, background in a magnetic resonance image."""
    return np.asarray(image.min(axis=(0, 1, 2)))
