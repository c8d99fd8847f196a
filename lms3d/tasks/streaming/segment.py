"""A network's probabilities for a whole case, on disk: at once or window by window, under one symmetry or the mean of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.data.volumes import patches, symmetries
from lms3d.data.volumes.geometry import Box, Shape
from lms3d.tasks.inference import Predictor, Read, Streamer
from lms3d.tasks.streaming.disk_map import DiskMap
from lms3d.tasks.streaming.volumes import slabs


def probabilities(
    network: Any, read: Read, shape: Shape, *, channels: int, scratch: Path, patch: Shape | None = None,
    numbers: Sequence[int] = (0,), beyond: Callable[[], np.ndarray] | None = None,
) -> DiskMap:  # fmt: skip
    """The probabilities of a case on a grid of `shape`, (A, B, C): the mean over the symmetries with these numbers.

    network: an `inference.Streamer`; with a patch, a Predictor of that shape. read: gives planes of the normalised image. channels:
    how many of the network's outputs to keep. scratch: the folder for temporary files. beyond: gives the values (channels,) around
    an image that is smaller than the patch; None: its smallest. The caller closes the result.
    StorageError if the disk of `scratch` fails or is too full.
    """
    total = DiskMap(scratch, shape, channels)
    try:
        if patch is None and tuple(numbers) == (0,):
            _at_once(network, read, total)
        else:
            _in_turns(network, read, total, patch, numbers, beyond)
    except BaseException:
        total.close()
        raise
    return total


def _in_turns(
    network: Any, read: Read, total: DiskMap, patch: Shape | None, numbers: Sequence[int],
    beyond: Callable[[], np.ndarray] | None,
) -> None:  # fmt: skip
    """Puts the mean over the symmetries into `total`. See `probabilities`."""
    box = patches.room(total.shape, patch or total.shape)
    with DiskMap(total.folder, box.shape, read(0, 1).shape[-1]) as image:
        _copy(read, image, box, total.shape, beyond)
        if box.shape == total.shape:
            _mean(network, image, total, patch, numbers)
            return
        with DiskMap(total.folder, box.shape, total.channels) as around:
            _mean(network, image, around, patch, numbers)
            a, b, c = (-low for low in box.lower)
            for start, stop in slabs(total):
                upper = (a + total.shape[0], b + total.shape[1], c + stop)
                total.write((0, 0, start), around.read((a, b, c + start), upper))


def _mean(network: Any, image: DiskMap, total: DiskMap, patch: Shape | None, numbers: Sequence[int]) -> None:
    """Puts the mean over the symmetries into `total`."""
    for k in numbers:
        with DiskMap(total.folder, turned_shape(image.shape, k), total.channels) as found:
            if patch is None:
                _at_once(network, partial(_planes, image, k, found.shape), found)
            else:
                _by_windows(network, image, k, patch, found)
            for start, stop in slabs(total):
                lower, upper = (0, 0, start), (*total.shape[:2], stop)
                total.add(lower, turned(found, symmetries.inverse(k), lower, upper))
    if len(numbers) > 1:
        for start, stop in slabs(total):
            lower = (0, 0, start)
            total.write(lower, total.read(lower, (*total.shape[:2], stop)) / np.float32(len(numbers)))


def _at_once(network: Streamer, read: Read, found: DiskMap) -> None:
    network(read, lambda first, planes: found.write((first, 0, 0), planes[..., : found.channels]))


def _by_windows(network: Predictor, image: DiskMap, k: int, patch: Shape, found: DiskMap) -> None:
    """Slides a window with Gaussian weights over the image under symmetry k (`lms3d.data.volumes.patches`)."""
    boxes, weight = patches.windows(found.shape, patch), patches.weights(patch)
    for box in boxes:
        said = network(np.ascontiguousarray(turned(image, k, box.lower, box.upper)))[..., : found.channels]
        found.add(box.lower, said if len(boxes) == 1 else weight * said)
    if len(boxes) == 1:
        return
    for start, stop in slabs(found):
        lower, upper = (0, 0, start), (*found.shape[:2], stop)
        found.write(lower, found.read(lower, upper) / patches.sum_of_weights(found.shape, patch, start, stop))


def _copy(read: Read, image: DiskMap, box: Box, shape: Shape, beyond: Callable[[], np.ndarray] | None) -> None:
    """Puts the planes of an image of `shape`, along its first axis, into a map of `box`."""
    parts = [(first, min(first + image.side, shape[0])) for first in range(0, shape[0], image.side)]
    if box.shape != shape:
        lowest = beyond() if beyond else np.min([patches.smallest(read(*part)) for part in parts], axis=0)
        for first in range(0, image.shape[0], image.side):
            size = (min(image.side, image.shape[0] - first), *image.shape[1:], image.channels)
            image.write((first, 0, 0), np.broadcast_to(lowest, size))
    a, b, c = (-low for low in box.lower)
    for part in parts:
        image.write((a + part[0], b, c), read(*part))


def _planes(image: DiskMap, k: int, shape: Shape, first: int, end: int) -> np.ndarray:
    """Planes of the first axis of the image under symmetry k, where it has this shape."""
    return turned(image, k, (first, 0, 0), (end, *shape[1:]))


def turned_shape(shape: Shape, k: int) -> Shape:
    """The shape of a volume of `shape` under symmetry k."""
    a, b, c = (shape[axis] for axis in symmetries.SYMMETRIES[k].axes)
    return a, b, c


def turned(volume: DiskMap, k: int, lower: Sequence[int], upper: Sequence[int]) -> np.ndarray:
    """The box lower <= index < upper of a volume under symmetry k, (a, b, c, channels). Nothing else is read."""
    symmetry, whole = symmetries.SYMMETRIES[k], turned_shape(volume.shape, k)
    spans = [(0, 0)] * 3
    for axis, flip, low, high, size in zip(symmetry.axes, symmetry.flips, lower, upper, whole, strict=True):
        spans[axis] = (size - high, size - low) if flip else (low, high)
    return symmetries.apply(volume.read([low for low, _ in spans], [high for _, high in spans]), k)
