"""The 48 symmetries of the cube: 6 orders of the axes times 8 choices of axes to flip.

A symmetry moves voxels without mixing them, so its inverse, which is another of the 48, is exact.

Arrays: (N, N, N), (N, N, N, C), or with a leading batch axis (B, N, N, N, C).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Symmetry:
    """First transpose by `axes`, then flip where `flips` says so."""

    axes: tuple[int, int, int]
    flips: tuple[bool, bool, bool]


SYMMETRIES: tuple[Symmetry, ...] = tuple(
    Symmetry((a, b, c), (x, y, z))
    for a, b, c in itertools.permutations(range(3))
    for x, y, z in itertools.product((False, True), repeat=3)
)
"""Number k of a symmetry is its index here; 0 changes nothing."""


def apply(array: np.ndarray, k: int) -> np.ndarray:
    """Symmetry number k of a cube: a view, nothing is copied."""
    symmetry = SYMMETRIES[k]
    first = 1 if array.ndim == 5 else 0
    order = (*range(first), *(first + axis for axis in symmetry.axes), *range(first + 3, array.ndim))
    flips = tuple(first + axis for axis, flip in enumerate(symmetry.flips) if flip)
    return np.flip(array.transpose(order), flips)


def inverse(k: int) -> int:
    """Number of the symmetry that undoes k: apply(apply(x, k), inverse(k)) == x."""
    symmetry = SYMMETRIES[k]
    a, b, c = (symmetry.axes.index(axis) for axis in range(3))
    x, y, z = (symmetry.flips[axis] for axis in (a, b, c))
    return SYMMETRIES.index(Symmetry((a, b, c), (x, y, z)))
