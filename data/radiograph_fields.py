"""Soft edges, bands and random fields on a square image: what radiographs are drawn with. All arrays are float32."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import ndimage


def grid(size: int, centre: tuple[float, float], scale: float, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """x (to the right) and y (down), each (size, size): -1 to 1 across the image, then moved, scaled and turned."""
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1
    x, y = (axis - centre[0])[None, :] / scale, (axis - centre[1])[:, None] / scale
    cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return cosine * x + sine * y, cosine * y - sine * x


def step(distance: np.ndarray, width: float) -> np.ndarray:
    """0 to 1 as `distance` goes from negative to positive, mostly within `width` of zero."""
    return np.clip(0.5 + distance / np.float32(4 * width), 0, 1)


def bump(distance: np.ndarray, width: float) -> np.ndarray:
    """1 where `distance` is zero, falling as a Gaussian of standard deviation `width`."""
    return np.exp(-0.5 * np.square(distance / np.float32(width)))


def disc(
    x: np.ndarray, y: np.ndarray, at: tuple[float, float], radii: tuple[float, float], angle: float = 0.0
) -> np.ndarray:
    """1 at the centre of an ellipse, 0 on its edge, negative outside: 1 - (distance in radii)."""
    cosine, sine = np.cos(angle), np.sin(angle)
    dx, dy = x - at[0], y - at[1]
    along, across = (cosine * dx + sine * dy) / radii[0], (cosine * dy - sine * dx) / radii[1]
    return 1 - np.sqrt(along * along + across * across)


def smooth_noise(rng: np.random.Generator, size: int, cells: int) -> np.ndarray:
    """A smooth field (size, size) of mean 0 and standard deviation 1 whose features are about 2 / `cells` across."""
    weights = _weights(size, cells)
    field = weights @ rng.standard_normal((cells + 4, cells + 4), np.float32) @ weights.T
    return field / np.float32(np.square(weights).sum(axis=1).mean())


def polar_noise(rng: np.random.Generator, turns: np.ndarray, radius: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
    """A field over angle (turns 0-1, periodic) and radius (0-1), of `cells` features along each; standard deviation ~1."""
    table = ndimage.gaussian_filter(rng.standard_normal(cells, np.float32), 0.6, mode=("wrap", "nearest"))
    table /= table.std()
    where = np.stack([turns * cells[0], radius * (cells[1] - 1)])
    return ndimage.map_coordinates(table, where, order=1, mode="grid-wrap")


@lru_cache(maxsize=32)
def _weights(size: int, cells: int) -> np.ndarray:
    """Gaussian interpolation (size, cells + 4) from a coarse line, which reaches over both ends, to a fine one."""
    positions = (np.arange(size) + 0.5) / size * cells + 1.5
    weights = np.exp(-0.5 * np.square((positions[:, None] - np.arange(cells + 4)) / 0.7))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
