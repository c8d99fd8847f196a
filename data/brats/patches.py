"""Patches of a volume: how training draws them, and how the prediction for a volume is composed from them.

A prediction slides a window with Gaussian weights over the volume, as in nnU-Net (Isensee et al., Nature Methods 2021). Windows
overlap by half, and each has most weight in its middle, where the network sees most of the surroundings.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy import ndimage

from lms3d.data.brats.geometry import Box, Shape
from lms3d.data.errors import DataError

TUMOUR_SHARE = 1 / 3
"""The share of training patches that are drawn around a voxel of the tumour, as in nnU-Net; the others lie anywhere."""
OVERLAP = 0.5
SIGMA_SHARE = 1 / 8
"""The standard deviation of the weights, as a share of the window."""


def check_patch(patch: Sequence[int], shape: Sequence[int]) -> None:
    """DataError for a patch that is larger than the volume."""
    if any(size > whole for size, whole in zip(patch, shape, strict=True)):
        sizes, volume = ("x".join(map(str, sides)) for sides in (patch, shape))
        raise DataError(f"--patch: found {sizes}; expected at most the volume, {volume}; choose a smaller patch")


def random_patch(truth: np.ndarray, patch: Shape, random: np.random.Generator) -> Box:
    """Draws a patch of a label map (A, B, C): around a random voxel of the tumour in TUMOUR_SHARE of the draws, else anywhere."""
    tumour = np.flatnonzero(truth) if random.random() < TUMOUR_SHARE else np.empty(0, np.intp)
    if tumour.size:
        voxel = np.unravel_index(tumour[random.integers(tumour.size)], truth.shape)
        return _inside(
            [int(v) - int(random.integers(size)) for v, size in zip(voxel, patch, strict=True)], patch, truth.shape
        )
    room = (whole - size for whole, size in zip(truth.shape, patch, strict=True))
    return _inside([int(random.integers(most + 1)) for most in room], patch, truth.shape)


def central_patch(truth: np.ndarray, patch: Shape) -> Box:
    """The patch for validation: around the tumour's centre of mass, or without tumour around the middle of the volume."""
    middle = ndimage.center_of_mass(truth > 0) if truth.any() else [(size - 1) / 2 for size in truth.shape]
    return _inside([round(m - (size - 1) / 2) for m, size in zip(middle, patch, strict=True)], patch, truth.shape)


def _inside(lower: Sequence[int], patch: Shape, shape: Sequence[int]) -> Box:
    a, b, c = (min(max(low, 0), whole - size) for low, size, whole in zip(lower, patch, shape, strict=True))
    return Box(lower=(a, b, c), upper=(a + patch[0], b + patch[1], c + patch[2]))


def windows(shape: Shape, patch: Shape) -> list[Box]:
    """Evenly spread windows that cover a volume of `shape`. Each overlaps the next by at least OVERLAP."""
    check_patch(patch, shape)
    starts = []
    for whole, size in zip(shape, patch, strict=True):
        count = 1 + int(np.ceil((whole - size) / (size * (1 - OVERLAP))))
        starts.append(sorted({round(place) for place in np.linspace(0, whole - size, count)}))
    return [_inside(lower, patch, shape) for lower in itertools.product(*starts)]


@lru_cache(maxsize=2)
def weights(patch: Shape) -> np.ndarray:
    """The weights of a window, (*patch, 1) float32: 1 in the middle, and never so small that rounding would lose a corner of the
    volume."""
    axes = [np.exp(-0.5 * ((np.arange(size) - (size - 1) / 2) / (SIGMA_SHARE * size)) ** 2) for size in patch]
    product = axes[0][:, None, None] * axes[1][:, None] * axes[2]
    return np.maximum(product, 1e-4).astype(np.float32)[..., np.newaxis]


def sliding_window(network: Callable[[np.ndarray], np.ndarray], image: np.ndarray, patch: Shape) -> np.ndarray:
    """The probabilities (A, B, C, outputs) float32 of a normalised image (A, B, C, channels), computed window by window.

    network: an image of size `patch` -> its probabilities (*patch, outputs).
    """
    shape = (image.shape[0], image.shape[1], image.shape[2])
    if shape == patch:
        return network(image)
    total: np.ndarray | None = None
    weight, sum_of_weights = weights(patch), np.zeros((*shape, 1), np.float32)
    for box in windows(shape, patch):
        probabilities = network(np.ascontiguousarray(box.crop(image)))
        if total is None:
            total = np.zeros((*shape, probabilities.shape[-1]), np.float32)
        box.crop(total)[...] += weight * probabilities  # the crop is a view, since windows lie inside the volume
        box.crop(sum_of_weights)[...] += weight
    assert total is not None, "a volume has at least one window"
    return total / sum_of_weights
