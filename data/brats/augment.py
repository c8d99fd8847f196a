"""The 48 symmetries of the cube: 6 orders of the axes times 8 choices of axes to flip.

A symmetry moves voxels without mixing them, so its inverse is exact. Together they form a group: applying two in turn
is again one of the 48 (`compose`), and each has an inverse (`inverse`).

Arrays: (N, N, N), (N, N, N, C), or with a leading batch axis (B, N, N, N, C).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf


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


def compose(second: int, first: int) -> int:
    """Number of the symmetry that does `first` and then `second`."""
    f, s = SYMMETRIES[first], SYMMETRIES[second]
    a, b, c = (f.axes[axis] for axis in s.axes)
    x, y, z = (f.flips[axis] != flip for axis, flip in zip(s.axes, s.flips, strict=True))
    return SYMMETRIES.index(Symmetry((a, b, c), (x, y, z)))


def tf_apply(tensor: tf.Tensor, k: Any) -> tf.Tensor:
    """`apply` in TensorFlow operations; k may be a tensor, so one traced function serves all 48."""
    import tensorflow as tf

    rank = tensor.shape.rank
    first = 1 if rank == 5 else 0
    axes = tf.gather(tf.constant([symmetry.axes for symmetry in SYMMETRIES], tf.int32), k) + first
    flips = tf.gather(tf.constant([symmetry.flips for symmetry in SYMMETRIES]), k)
    order = tf.concat([tf.range(first), axes, tf.range(first + 3, rank)], axis=0)
    still = [tf.zeros([first], tf.bool), flips, tf.zeros([rank - first - 3], tf.bool)]
    moved = tf.raw_ops.Reverse(tensor=tf.transpose(tensor, order), dims=tf.concat(still, axis=0))
    moved.set_shape(tensor.shape)  # a cube keeps its shape under every symmetry
    return moved
