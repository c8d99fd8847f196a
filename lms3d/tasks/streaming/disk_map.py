"""Numbers of a volume in a file without a name, in tiles, so that any box is read or written without touching the rest.

DISK-1 The file vanishes with the process, however that ends.
DISK-2 Nothing is mapped: a full disk is an error and no signal, and pages of the file are no memory of the process.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from lms3d.errors import StorageError
from lms3d.units import format_size

_TILE_BYTES = 64 << 10
_LONGEST_SIDE = 16

Part = tuple[slice, slice, slice]


class DiskMap:
    """A `Volume` of float32 on disk, 0 at first. shape: (A, B, C). Use it in a `with` block, or `close` it."""

    def __init__(self, folder: Path, shape: Sequence[int], channels: int) -> None:
        """folder: where the file lies. StorageError if its disk is too full."""
        self.shape, self.channels = (shape[0], shape[1], shape[2]), channels
        self.folder, self.side = folder, _side(channels)
        self._tiles = [-(-size // self.side) for size in self.shape]
        self._tile_bytes = self.side**3 * channels * np.dtype(np.float32).itemsize
        self._lock = threading.Lock()
        needed, free = int(np.prod(self._tiles)) * self._tile_bytes, shutil.disk_usage(folder).free
        if needed > free:
            raise StorageError(
                f"{folder}: found {format_size(free)} free; expected {format_size(needed)} for the maps of a case; free "
                "some space, or name a folder on another disk"
            )
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- `close` closes it
        os.ftruncate(self._file.fileno(), needed)

    def __enter__(self) -> DiskMap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the space on the disk back."""
        self._file.close()

    def planes(self, start: int, stop: int) -> np.ndarray:
        """See `Volume`."""
        return self.read((0, 0, start), (*self.shape[:2], stop)).transpose(2, 0, 1, 3)

    def read(self, lower: Sequence[int], upper: Sequence[int]) -> np.ndarray:
        """The numbers of a box, lower <= index < upper, as (a, b, c, channels). Planes of the third axis lie together."""
        a, b, c = (high - low for low, high in zip(lower, upper, strict=True))
        found = np.empty((c, a, b, self.channels), np.float32).transpose(1, 2, 0, 3)
        for offset, inside, outside in self._parts(lower, upper):
            found[outside] = self._tile(offset)[inside]
        return found

    def write(self, lower: Sequence[int], values: np.ndarray) -> None:
        """Puts `values` (a, b, c, channels) in place of the numbers of the box that begins at `lower`."""
        self._change(lower, values, add=False)

    def add(self, lower: Sequence[int], values: np.ndarray) -> None:
        """Adds `values` (a, b, c, channels) to the numbers of the box that begins at `lower`."""
        self._change(lower, values, add=True)

    def _change(self, lower: Sequence[int], values: np.ndarray, *, add: bool) -> None:
        upper = [low + size for low, size in zip(lower, values.shape[:3], strict=True)]
        for offset, inside, outside in self._parts(lower, upper):
            with self._lock:  # several threads write slabs, and slabs may share a tile
                tile = self._tile(offset)
                tile[inside] = tile[inside] + values[outside] if add else values[outside]
                self._put(offset, tile)

    def _tile(self, offset: int) -> np.ndarray:
        """The tile (side, side, side, channels) at a place in the file."""
        data = bytearray(os.pread(self._file.fileno(), self._tile_bytes, offset))
        if len(data) < self._tile_bytes:
            raise StorageError(f"{self.folder}: found a temporary file cut off; expected it whole; predict again")
        return np.frombuffer(data, np.float32).reshape(self.side, self.side, self.side, self.channels)

    def _put(self, offset: int, tile: np.ndarray) -> None:
        try:
            written = os.pwrite(self._file.fileno(), tile.data, offset)
            if written < self._tile_bytes:  # the disk is full; the next call would say so
                os.pwrite(self._file.fileno(), tile.tobytes()[written:], offset + written)
        except OSError as error:
            raise StorageError(
                f"{self.folder}: cannot keep the maps of a case: {error.strerror}; free some space, or name a folder on "
                "another disk"
            ) from None

    def _parts(self, lower: Sequence[int], upper: Sequence[int]) -> Iterator[tuple[int, Part, Part]]:
        """For each tile that a box touches: its place in the file, the box's part of the tile, and the tile's part of the box."""
        axes = [_cuts(low, high, self.side) for low, high in zip(lower, upper, strict=True)]
        for (i, *a), (j, *b), (k, *c) in itertools.product(*axes):
            number = (int(i) * self._tiles[1] + int(j)) * self._tiles[2] + int(k)
            yield number * self._tile_bytes, (a[0], b[0], c[0]), (a[1], b[1], c[1])


def _cuts(low: int, high: int, side: int) -> list[tuple[int, slice, slice]]:
    """Along one axis, for each tile that low .. high - 1 touches: its number, the part of the tile, the part of the range."""
    found = []
    for tile in range(low // side, -(-high // side)):
        start, stop = max(low, tile * side), min(high, (tile + 1) * side)
        found.append((tile, slice(start - tile * side, stop - tile * side), slice(start - low, stop - low)))
    return found


def _side(channels: int) -> int:
    """The side of a tile, a power of two: the largest within _TILE_BYTES."""
    side = _LONGEST_SIDE
    while side > 1 and side**3 * channels * np.dtype(np.float32).itemsize > _TILE_BYTES:
        side //= 2
    return side
