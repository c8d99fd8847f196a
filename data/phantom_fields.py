"""Smooth random fields: what makes one phantom differ from the next, from the shape of a gyrus to the bias field."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def smooth_field(rng: np.random.Generator, shape: Sequence[int], scale: float) -> np.ndarray:
    """A random field (X, Y, Z) float32 of mean 0 and standard deviation 1 that changes over `scale` voxels.

    Normal numbers on a coarse grid, joined by cubic B-splines. The spline is separable: three matrix products.
    """
    weights = [_spline_weights(size, scale) for size in shape]
    field = rng.standard_normal([matrix.shape[1] for matrix in weights], dtype=np.float32)
    for matrix in weights:  # each product takes the first axis and puts it last; after three, the order is as before
        field = np.tensordot(field, matrix, axes=(0, 1))
    field -= field.mean()
    return field / max(float(field.std()), 1e-6)


def _spline_weights(size: int, scale: float) -> np.ndarray:
    """(size, knots): the weight of each knot at each voxel of one axis."""
    position = np.arange(size, dtype=np.float32)[:, None] / scale + 1
    knots = np.arange(int(np.ceil(size / scale)) + 3, dtype=np.float32)[None, :]
    distance = np.abs(position - knots)
    inner = 2 / 3 - distance**2 + distance**3 / 2
    outer = (2 - distance) ** 3 / 6
    return np.where(distance < 1, inner, np.where(distance < 2, outer, 0)).astype(np.float32)


def soft_step(values: np.ndarray, width: float) -> np.ndarray:
    """0 below zero, 1 above, with a ramp of `width` around it."""
    return np.clip(values / width + 0.5, 0, 1)
