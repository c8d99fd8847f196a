"""The symmetries of a volume, which permute and flip its axes: 48 for a cube.

A symmetry moves voxels without mixing them. So its inverse, which is another of the 48, is exact.

Arrays are (A, B, C), (A, B, C, channels), or with a leading batch axis (B, A, B, C, channels).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Symmetry:
    """A symmetry: first transpose by `axes`, then flip the axes for which `flips` is true."""

    axes: tuple[int, int, int]
    flips: tuple[bool, bool, bool]


SYMMETRIES: tuple[Symmetry, ...] = tuple(
    Symmetry((a, b, c), (x, y, z))
    for a, b, c in itertools.permutations(range(3))
    for x, y, z in itertools.product((False, True), repeat=3)
)
"""All symmetries. The number k of a symmetry is its index here; 0 changes nothing."""

SETS = ("all", "flips", "mirror", "none")
"""The subsets by name: every symmetry that keeps the shape; the eight flips; flips of left and right (the first axis) only; only
0."""


@lru_cache(maxsize=32)
def allowed(shape: tuple[int, ...], which: str = "all") -> tuple[int, ...]:
    """The numbers of the symmetries of a set, one of SETS, that keep the shape (A, B, C) of a volume.

    A cube has 48, a box with two equal sides has 16, and any other has 8.
    """
    kept = {
        "all": lambda s: tuple(shape[axis] for axis in s.axes) == shape,
        "flips": lambda s: s.axes == (0, 1, 2),
        "mirror": lambda s: s.axes == (0, 1, 2) and not any(s.flips[1:]),
        "none": lambda s: s == SYMMETRIES[0],
    }[which]
    return tuple(k for k, symmetry in enumerate(SYMMETRIES) if kept(symmetry))


def apply(array: np.ndarray, k: int) -> np.ndarray:
    """A volume under symmetry number k, as a view without a copy."""
    symmetry = SYMMETRIES[k]
    first = 1 if array.ndim == 5 else 0
    order = (*range(first), *(first + axis for axis in symmetry.axes), *range(first + 3, array.ndim))
    flips = tuple(first + axis for axis, flip in enumerate(symmetry.flips) if flip)
    return np.flip(array.transpose(order), flips)


def inverse(k: int) -> int:
    """The number of the symmetry that undoes k: apply(apply(x, k), inverse(k)) == x."""
    symmetry = SYMMETRIES[k]
    a, b, c = (symmetry.axes.index(axis) for axis in range(3))
    x, y, z = (symmetry.flips[axis] for axis in (a, b, c))
    return SYMMETRIES.index(Symmetry((a, b, c), (x, y, z)))
