"""Volumes that are read in planes, and computed when they are read.

Planes run along the third axis, the slowest in a NIfTI file, so that a file can be written as they come. The numbers of a plane do
not depend on which others are read with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lms3d.data.volumes.geometry import Box, Shape
from lms3d.data.volumes.resample import resize

_SLAB_BYTES = 4 << 20


class Volume(Protocol):
    """Numbers (A, B, C, channels) float32 on a grid of `shape`, (A, B, C)."""

    @property
    def shape(self) -> Shape: ...

    @property
    def channels(self) -> int: ...

    def planes(self, start: int, stop: int) -> np.ndarray:
        """The planes start .. stop - 1 of the third axis, which comes first: (stop - start, A, B, channels)."""


@dataclass(frozen=True, eq=False)
class Array:
    """A volume that is in memory anyway. values: (A, B, C, channels)."""

    values: np.ndarray

    @property
    def shape(self) -> Shape:
        a, b, c = self.values.shape[:3]
        return a, b, c

    @property
    def channels(self) -> int:
        return self.values.shape[3]

    def planes(self, start: int, stop: int) -> np.ndarray:
        return self.values[:, :, start:stop].transpose(2, 0, 1, 3)


@dataclass(frozen=True)
class Resized:
    """A volume resampled to another grid that covers the same extent, edge to edge, linearly (`lms3d.data.volumes.resample`).

    The third axis is resampled first, then the others.
    """

    volume: Volume
    shape: Shape

    @property
    def channels(self) -> int:
        return self.volume.channels

    def planes(self, start: int, stop: int) -> np.ndarray:
        if self.shape == self.volume.shape:
            return self.volume.planes(start, stop)
        return resize(self._along_third(start, stop), (stop - start, *self.shape[:2]))

    def _along_third(self, start: int, stop: int) -> np.ndarray:
        old, new = self.volume.shape[2], self.shape[2]
        if old == new:
            return self.volume.planes(start, stop)
        places = np.clip((np.arange(start, stop) + 0.5) * (old / new) - 0.5, 0, old - 1)
        below = np.floor(places).astype(int)
        above = np.minimum(below + 1, old - 1)
        known = self.volume.planes(below[0], above[-1] + 1)
        share = (places - below).astype(np.float32)[:, None, None, None]
        found = known[below - below[0]]
        found += (known[above - below[0]] - found) * share
        return found


@dataclass(frozen=True)
class Placed:
    """A volume of the shape of `box`, in its place on a grid of `shape`, with zeros elsewhere. Voxels beyond the grid are lost."""

    volume: Volume
    box: Box
    shape: Shape

    @property
    def channels(self) -> int:
        return self.volume.channels

    def planes(self, start: int, stop: int) -> np.ndarray:
        return _moved(self.volume, self.box.lower, self.shape, start, stop)


@dataclass(frozen=True)
class Cropped:
    """The part of a volume in `box`, with zeros beyond the volume."""

    volume: Volume
    box: Box

    @property
    def shape(self) -> Shape:
        return self.box.shape

    @property
    def channels(self) -> int:
        return self.volume.channels

    def planes(self, start: int, stop: int) -> np.ndarray:
        a, b, c = self.box.lower
        return _moved(self.volume, (-a, -b, -c), self.shape, start, stop)


@dataclass(frozen=True)
class Mean:
    """The mean of volumes on one grid, one at least."""

    volumes: Sequence[Volume]

    @property
    def shape(self) -> Shape:
        return self.volumes[0].shape

    @property
    def channels(self) -> int:
        return self.volumes[0].channels

    def planes(self, start: int, stop: int) -> np.ndarray:
        if len(self.volumes) == 1:
            return self.volumes[0].planes(start, stop)
        total = np.zeros((stop - start, *self.shape[:2], self.channels), np.float32)
        for volume in self.volumes:
            total += volume.planes(start, stop)
        return total / np.float32(len(self.volumes))


def slabs(volume: Volume) -> Iterator[tuple[int, int]]:
    """The planes (start, stop) to read at a time: all, in order."""
    plane_bytes = volume.shape[0] * volume.shape[1] * volume.channels * np.dtype(np.float32).itemsize
    thickness = max(1, _SLAB_BYTES // plane_bytes)
    for start in range(0, volume.shape[2], thickness):
        yield start, min(start + thickness, volume.shape[2])


def whole(volume: Volume, values: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """What `values` makes of a volume, in memory: (A, B, C). values: (.., channels) float32 -> (..), voxel by voxel."""
    parts = [values(volume.planes(start, stop)) for start, stop in slabs(volume)]
    return np.concatenate(parts).transpose(1, 2, 0)


def _moved(volume: Volume, at: Shape, shape: Shape, start: int, stop: int) -> np.ndarray:
    """Planes of a grid of `shape` on which `volume` begins at `at`, with zeros around it."""
    found = np.zeros((stop - start, *shape[:2], volume.channels), np.float32)
    first, last = max(start - at[2], 0), min(stop - at[2], volume.shape[2])
    if first >= last:
        return found
    spans = [(max(low, 0), min(low + size, whole)) for low, size, whole in zip(at, volume.shape, shape, strict=True)]
    here = tuple(slice(low, max(low, high)) for low, high in spans[:2])
    there = tuple(slice(low - begin, max(low, high) - begin) for (low, high), begin in zip(spans[:2], at, strict=False))
    found[first + at[2] - start : last + at[2] - start, *here] = volume.planes(first, last)[:, *there]
    return found
