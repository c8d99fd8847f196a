"""Arithmetic with the same bits on every x86-64 machine, for phantoms and radiographs.

A seed gives the same data on any processor, with any number of threads and processes, and with any BLAS and C library, because
nothing that depends on them is used. IEEE 754 leaves no choice in + - * / and sqrt of one element, nor in integers, comparison and
rounding. NumPy does each operation in a pass of its own, so that the compiler cannot fuse two of them. These operations would
differ, and have the following substitutes:

E1 Products of matrices (`@`, dot, tensordot, linalg): BLAS has a kernel for each processor, and splits sums among threads.
   -> Sums written out, term after term.
E2 exp, log, sin, pow, hypot and the like, of NumPy and of the C library (`math`, `**`): each instruction set has its own version
with
   its own last bits. -> `exp`, `sine`, `cosine`, `direction`, `cube_root`, which use + - * / in a fixed order. They approximate the
   functions of those names: a phantom needs a bell or a wave, not its last digit.
E3 Sums of floats: the library decides their order (even Python's `sum` differs between 3.11 and 3.12). -> `total`, `mean`, which
sum
   integers, whose order does not matter.
E4 The choice among equal values (argpartition, argsort): each instruction set has its own algorithm. -> `smallest`.
E5 Normal random numbers: their tails need logarithms. -> `normals`, made of integers. Uniform numbers and integers are safe.

Of SciPy, only those loops of `ndimage` are used that have one version and one thread: correlate1d, map_coordinates (order 0 or 1)
and distance_transform_edt. `tests/data/phantoms/test_same_everywhere.py` checks that the modules use only names that keep these
rules, and computes the digests of small phantoms and radiographs as other processors would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from scipy import ndimage

Values = TypeVar("Values", float, np.ndarray)

_SQUARINGS = 10
_LEAST = -80.0  # the least x of e^x; below, numbers in float32 become denormal, which some libraries switch off
_UNIT = 2.0**20  # `total` counts in 1 / _UNIT
_CACHED = 2**16  # elements of float32 that fit into a processor's cache


def normals(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Normal random numbers (*shape) in float32, of mean 0 and standard deviation 1, except for the far tails: none is beyond 4.9.

    Each is the sum of the eight bytes of a random word (Irwin and Hall's distribution).
    """
    words = rng.bit_generator.random_raw(math.prod(shape))
    even = np.uint64(0x00FF00FF00FF00FF)
    pairs = (words & even) + ((words >> np.uint64(8)) & even)  # four sums of two bytes, side by side
    sums = (pairs * np.uint64(0x0001000100010001)) >> np.uint64(48)  # the product adds all four up in its top 16 bits
    middle, variance = 8 * 255 / 2, 8 * (256 * 256 - 1) / 12
    return ((sums.astype(np.float32) - middle) / math.sqrt(variance)).reshape(shape)


def normal(rng: np.random.Generator, mean: float, deviation: float) -> float:
    """One normal number."""
    return mean + deviation * float(normals(rng, (1,))[0])


def exp(x: Values) -> Values:
    """e^x as (1 + x / 1024)^1024, which is too small by a share of x^2 / 2048. Below x = -80 it is constant."""
    power = 1 + np.maximum(x, _LEAST) / (1 << _SQUARINGS)
    for _ in range(_SQUARINGS):
        power *= power
    return power


def sine(angle: Values) -> Values:
    """sin(angle), in radians, to 1e-7 of a float64."""
    turns = angle / (2 * math.pi)
    turns = turns - np.rint(turns)
    quarter = 0.25 - np.abs(np.abs(turns) - 0.25)  # the angle in the first quarter with the same sine but for its sign
    x = 2 * math.pi * np.copysign(quarter, turns)
    square = x * x
    return x * (1 - square / 6 * (1 - square / 20 * (1 - square / 42 * (1 - square / 72 * (1 - square / 110)))))


def cosine(angle: Values) -> Values:
    """cos(angle), in radians."""
    return sine(angle + math.pi / 2)


def direction(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The direction of (x, y) from zero, in turns from -1/2 to 1/2: arctan2(y, x) / 2 pi, to 0.001."""
    across, along = np.abs(y), np.abs(x)
    slope = np.minimum(across, along) / np.maximum(np.maximum(across, along), 1e-12)
    turns = slope * (0.125 + 0.0435 * (1 - slope))
    turns = np.where(across > along, 0.25 - turns, turns)
    return np.copysign(np.where(x < 0, 0.5 - turns, turns), y)


def length(*parts: np.ndarray) -> np.ndarray:
    """The lengths of the vectors with these coordinates."""
    squares = np.square(parts[0])
    for part in parts[1:]:
        squares = squares + np.square(part)
    return np.sqrt(squares)


def cube_root(x: float) -> float:
    """The cube root of a positive number up to 1e9, by Newton's method."""
    root = max(x, 1.0)
    for _ in range(64):
        root -= (root - x / (root * root)) / 3
    return root


def total(values: np.ndarray) -> float:
    """The sum of the values, each rounded to 1e-6. It may reach 8e12."""
    return int(np.rint(values.astype(np.float64) * _UNIT).astype(np.int64).sum()) / _UNIT


def mean(values: np.ndarray) -> float:
    """The mean, as exact as `total`."""
    return total(values) / values.size


def smallest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the `count` smallest of values (V,), sorted; the first ones among equal values. All if there are fewer."""
    if count <= 0 or values.size <= count:
        return np.arange(values.size if count > 0 else 0)
    limit = np.partition(values, count - 1)[count - 1]
    chosen = values < limit
    chosen[np.flatnonzero(values == limit)[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def blur(array: np.ndarray, width: float, modes: Sequence[str] = ()) -> np.ndarray:
    """The array blurred by a Gaussian of standard deviation `width`, in elements. modes: ndimage's mode for each axis (reflect)."""
    reach = int(4 * width + 0.5)
    weights = exp(-0.5 * np.square(np.arange(-reach, reach + 1) / width))
    weights /= total(weights)
    for axis, mode in enumerate(modes or ["reflect"] * array.ndim):
        array = ndimage.correlate1d(array, weights, axis, mode=mode)
    return array


def smooth_field(rng: np.random.Generator, shape: Sequence[int], scale: float) -> np.ndarray:
    """A random field (*shape) in float32 of mean 0 and standard deviation 1 that varies over `scale` elements.

    It joins normal numbers on a coarse grid by cubic B-splines, one axis after the other.
    """
    field = normals(rng, [math.ceil(size / scale) + 3 for size in shape])
    for axis in reversed(range(len(shape))):  # the last pass, over most elements, is along the first axis
        lines = np.ascontiguousarray(np.moveaxis(field, axis, 0))
        field = np.moveaxis(_spline(lines, shape[axis], scale), 0, axis)
    sample = field.ravel()[::17]  # the field is smooth, so one element in 17 is enough; no knots lie that far apart
    middle = mean(sample)
    deviation = math.sqrt(mean(np.square(sample - middle)))
    field -= middle
    field /= max(deviation, 1e-6)
    return field


def _spline(knots: np.ndarray, size: int, scale: float) -> np.ndarray:
    """The spline through knots, (K, ...) -> (size, ...). Each element is the weighted sum of the four knots around it, in order."""
    place = np.arange(size) / scale
    first = place.astype(int)
    t = place - first
    s = 1 - t
    near, far = t * t * (2 - t) / 2, s * s * (2 - s) / 2
    weights = [s * s * s / 6, 2 / 3 - near, 2 / 3 - far, t * t * t / 6]
    columns = [weight.astype(np.float32).reshape(-1, *[1] * (knots.ndim - 1)) for weight in weights]
    out = np.empty((size, *knots.shape[1:]), np.float32)
    block = max(1, _CACHED * size // out.size)
    for start in range(0, size, block):
        part = slice(start, start + block)
        nearest = first[part]
        np.multiply(knots[nearest], columns[0][part], out=out[part])
        for k in (1, 2, 3):
            out[part] += knots[nearest + k] * columns[k][part]
    return out
