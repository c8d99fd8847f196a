"""Seeded pairs of masks and of label maps, for tests and for the independent implementations that `make.py` asks.

Arrays are (X, Y, Z). Everything is made of whole numbers, so that every version of numpy and every machine makes the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain

import numpy as np

SPACINGS = ((1.0, 1.0, 1.0), (1.0, 1.0, 2.0), (0.5, 1.25, 3.0))


def masks(count: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[float, float, float]]]:
    """(prediction, truth, voxel size in mm) of boxes and balls, and of noise; some empty, some at the border."""
    random = np.random.default_rng(seed)
    for number in range(count):
        shape = tuple(int(size) for size in random.integers(6, 24, 3))
        truth = _blobs(random, shape, int(random.integers(0, 4)))
        kind = number % 4
        if kind == 0:
            prediction = _blobs(random, shape, int(random.integers(0, 4)))
        elif kind == 1:
            prediction = np.roll(truth, int(random.integers(-2, 3)), axis=int(random.integers(3)))
        elif kind == 2:
            prediction = truth ^ (random.integers(0, 12, shape) == 0)
        else:
            prediction = truth & (random.integers(0, 5, shape) > 0)
        yield prediction, truth, SPACINGS[number % len(SPACINGS)]


def degenerate() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name -> (prediction, truth), for pairs with which programs divide by zero."""
    shape = (9, 11, 7)
    nothing, whole = np.zeros(shape, bool), np.ones(shape, bool)
    one, corner, other, block = (nothing.copy() for _ in range(4))
    one[4, 5, 3] = corner[0, 0, 0] = other[8, 10, 6] = True
    block[2:6, 3:8, 2:5] = True
    touching = nothing.copy()
    touching[:4, :, -2:] = True
    return {
        "both empty": (nothing, nothing),
        "prediction empty": (nothing, block),
        "truth empty": (block, nothing),
        "identical": (block, block),
        "single voxel, identical": (one, one),
        "single voxel in a block": (one, block),
        "corner against block": (corner, block),
        "at the border": (touching, block),
        "both at the border": (touching, np.flip(touching, 0)),
        "whole volume": (whole, whole),
        "whole volume against one voxel": (whole, one),
        "disjoint": (corner, other),
    }


def label_maps(count: int, seed: int = 1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(prediction, truth) uint8 with labels 0 to 4: several nested lesions, small ones, missed and false ones, cavities."""
    random = np.random.default_rng(seed)
    for number in range(count):
        shape = tuple(int(size) for size in random.integers(30, 46, 3))
        truth, prediction = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        for _ in range(int(random.integers(1, 6))):
            centre = [int(random.integers(2, size - 2)) for size in shape]
            radius = int(random.integers(1, 8))
            fate = int(random.integers(0, 6))  # 0: missed, 1: false
            inner = (radius, max(0, radius - int(random.integers(0, 3))), max(0, radius - int(random.integers(2, 5))))
            shift = [c + int(random.integers(-2, 3)) for c in centre]
            change = int(random.integers(-1, 2))
            if fate != 1:
                _paint(truth, centre, inner)
            if fate != 0:
                _paint(prediction, shift, tuple(max(0, r + change) for r in inner))
        for labels in (truth, prediction):
            if number % 3 == 0:
                _ball(labels, [int(random.integers(4, size - 4)) for size in shape], int(random.integers(2, 5)), 4)
            if number % 4 == 0:
                labels[random.integers(0, 600, shape) == 0] = int(random.integers(1, 4))
        if number % 10 == 9:
            prediction[prediction == 3] = 1  # no enhancing tumour
        if number == 7:
            prediction[:] = 0
        yield prediction, truth


SMALL_MAPS = 500


def oriented() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(prediction, truth) uint8 with labels 0 to 4, small: several nested lesions and cavities, then 100 degenerate pairs."""
    yield from _small_maps()
    yield from _degenerate_maps()


def _small_maps() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(3)
    for number in range(SMALL_MAPS):
        shape = tuple(int(size) for size in random.integers(12, 22, 3))
        truth, prediction = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        for _ in range(int(random.integers(1, 6))):
            centre = [int(random.integers(0, size)) for size in shape]
            radius, fate = int(random.integers(0, 5)), int(random.integers(0, 8))  # 0: missed, 1: false
            radii = (radius, max(0, radius - int(random.integers(0, 2))), max(0, radius - int(random.integers(1, 4))))
            moved = [c + int(random.integers(-1, 2)) for c in centre]
            change = int(random.integers(-1, 2))
            if fate != 1:
                _paint(truth, centre, radii)
            if fate != 0:
                _paint(prediction, moved, tuple(max(0, r + change) for r in radii))
        for labels in (truth, prediction):
            if number % 3 == 0:
                _ball(labels, [int(random.integers(0, size)) for size in shape], int(random.integers(1, 4)), 4)
            if number % 5 == 0:
                labels[random.integers(0, 400, shape) == 0] = int(random.integers(1, 5))
        yield prediction, truth


def _degenerate_maps() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each of ten label maps against each."""
    shapes = _degenerate_labels()
    for prediction in shapes:
        for truth in shapes:
            yield prediction, truth


def _degenerate_labels() -> list[np.ndarray]:
    """Ten label maps: nothing, everything, single voxels, the very volumes that rules drop, lesions that touch at a corner."""
    found = [np.zeros((11, 10, 9), np.uint8) for _ in range(10)]
    _, whole, one, corner, two, fifty, small, near, nested, plane = found
    whole[:] = 3
    one[5, 5, 4] = 3
    corner[0, 0, 0] = 1
    two[5, 5, 4:6] = 3
    fifty[1:6, 1:6, 1:3] = 3
    fifty[8:10, 7:9, 2:7] = 1  # 20
    small[1:4, 1:4, 1:4] = 1  # 27
    small[7:9, 3:8, 6] = 3  # 10
    near[2:5, 2:5, 2:5] = 3
    near[5:8, 5:8, 5:8] = 3  # at a corner
    near[2:5, 2:5, 7] = 2
    _paint(nested, [5, 5, 4], (4, 3, 1))
    nested[0, :, 0] = 4
    plane[:, :, -1] = 2
    plane[:, 0, -1] = 4
    return found


HEADER_SPACINGS = ((1.0, 1.0, 1.0), (0.94, 0.94, 3.0), (2.0, 2.0, 5.0))


def headers() -> list[np.ndarray]:
    """Affines (4, 4): each spacing axis-aligned, mirrored, and oblique."""
    found = []
    for spacing in HEADER_SPACINGS:
        for turn in (np.eye(3), np.diag([-1.0, -1.0, 1.0]), rotation(12, 25, -7)):
            affine = np.eye(4)
            affine[:3, :3] = turn @ np.diag(spacing)
            affine[:3, 3] = (-30.5, 12.25, 7)
            found.append(affine)
    return found


def rotation(*degrees: float) -> np.ndarray:
    """Around x, y, z (3, 3)."""
    found = np.eye(3)
    for axis, angle in enumerate(np.radians(degrees)):
        turn = np.eye(3)
        one, other = [a for a in range(3) if a != axis]
        turn[one, one] = turn[other, other] = np.cos(angle)
        turn[one, other], turn[other, one] = -np.sin(angle), np.sin(angle)
        found = turn @ found
    return found


LABEL_MAPS = 40
"""Larger pairs, in addition to the small ones of `oriented`."""


def placed() -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(header, prediction, truth): each pair with one header in turn, every thirtieth small one with all of them."""
    every = len(headers())
    # From 500 on: so more small ones would not give the degenerate ones other headers.
    small, degenerate = enumerate(_small_maps()), enumerate(_degenerate_maps(), start=500)
    for number, (prediction, truth) in chain(small, degenerate):
        for header in range(every) if number % 30 == 0 else [(number + number // every) % every]:
            yield header, prediction, truth
    for number, (prediction, truth) in enumerate(label_maps(LABEL_MAPS)):
        yield number % every, prediction, truth


def digest(*arrays: np.ndarray) -> str:
    """Short checksum: golden numbers belong to exactly these voxels."""
    content = b"".join(np.ascontiguousarray(one).astype(np.uint8).tobytes() for one in arrays)
    return hashlib.sha256(content).hexdigest()[:12]


def _blobs(random: np.random.Generator, shape: tuple[int, ...], count: int) -> np.ndarray:
    found = np.zeros(shape, np.uint8)
    for _ in range(count):
        _ball(found, [int(random.integers(0, size)) for size in shape], int(random.integers(0, 6)), 1)
    return found > 0


def _paint(labels: np.ndarray, centre: list[int], radii: tuple[int, ...]) -> None:
    """Oedema around enhancing tumour around necrosis."""
    for radius, value in zip(radii, (2, 3, 1), strict=True):
        _ball(labels, centre, radius, value)


def _ball(labels: np.ndarray, centre: list[int], radius: int, value: int) -> None:
    axes = np.ogrid[tuple(slice(0, size) for size in labels.shape)]
    away = sum((axis - c) ** 2 for axis, c in zip(axes, centre, strict=True))
    labels[away <= radius**2] = value
