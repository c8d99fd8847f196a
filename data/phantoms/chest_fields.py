"""Soft edges, bands and random fields on a square image, of which radiographs are drawn. All arrays are float32."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from lms3d.data.phantoms.exact import blur, cosine, exp, length, mean, normals, sine, smooth_field


def grid(size: int, centre: tuple[float, float], scale: float, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates x (to the right) and y (down), each (size, size): -1 to 1 across the image, then moved, scaled and turned."""
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1
    x, y = (axis - centre[0])[None, :] / scale, (axis - centre[1])[:, None] / scale
    c, s = np.float32(cosine(angle)), np.float32(sine(angle))
    return c * x + s * y, c * y - s * x


def step(distance: np.ndarray, width: float) -> np.ndarray:
    """A soft edge: 0 to 1 as `distance` goes from negative to positive, mostly within `width` of zero."""
    return np.clip(0.5 + distance / np.float32(4 * width), 0, 1)


def bump(distance: np.ndarray, width: float) -> np.ndarray:
    """A band: 1 at distance zero, and falling as a Gaussian of standard deviation `width`."""
    return exp(-0.5 * np.square(distance / np.float32(width)))


def disc(
    x: np.ndarray, y: np.ndarray, at: tuple[float, float], radii: tuple[float, float], angle: float = 0.0
) -> np.ndarray:
    """An ellipse: 1 at its centre, 0 on its edge, negative outside, as 1 - (distance in radii)."""
    c, s = np.float32(cosine(angle)), np.float32(sine(angle))
    dx, dy = x - at[0], y - at[1]
    return 1 - length((c * dx + s * dy) / radii[0], (c * dy - s * dx) / radii[1])


def union(a: np.ndarray, b: np.ndarray, width: float = 0.2) -> np.ndarray:
    """The larger of two discs at each point, with a rounded corner at their border."""
    near = np.maximum(width - np.abs(a - b), 0)
    return np.maximum(a, b) + np.square(near) / (4 * width)


def smooth_noise(rng: np.random.Generator, size: int, cells: int) -> np.ndarray:
    """A smooth field (size, size) of mean 0 and standard deviation 1, with features about 2 / `cells` across."""
    return smooth_field(rng, (size, size), 1.2 * size / cells)


def polar_noise(rng: np.random.Generator, turns: np.ndarray, radius: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
    """A field over angle (turns 0-1, periodic) and radius (0-1), with `cells` features along each, and a standard deviation near
    1."""
    table = blur(normals(rng, cells), 0.6, modes=("wrap", "nearest"))
    table -= mean(table)
    table /= np.sqrt(mean(np.square(table)))
    where = np.stack([turns * cells[0], radius * (cells[1] - 1)])
    return ndimage.map_coordinates(table, where, order=1, mode="grid-wrap")
