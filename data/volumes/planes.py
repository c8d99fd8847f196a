"""A case of a cache, read plane by plane: its image need not fit into memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.data.errors import DataError
from lms3d.data.volumes import normalise
from lms3d.data.volumes.cache import Cache
from lms3d.data.volumes.normalise import Normalisation

_CHUNK_BYTES = 8 << 20


def image_planes(normalisation: Normalisation, cache: Cache, case_id: str) -> Callable[[int, int], np.ndarray]:
    """A function: first, end -> these planes of the image of a case along its first axis, (end - first, B, C, channels) float32,
    as a network takes them. DataError for a damaged entry."""
    entry, path = cache.entry(case_id), cache.directory / case_id / "image.npy"
    scale = np.asarray(entry["scale"], np.float32)
    shape = (*cache.shape_of(case_id), len(scale))
    first_byte = _checked(path, shape, entry["files"]["image.npy"]["crc32"])

    def planes(first: int, end: int) -> np.ndarray:
        part = (end - first, *shape[1:])
        stored = _read(path, first_byte, first, part)
        return normalise.apply(normalisation, stored, scale, entry, np.empty(part, np.float32))

    return planes


def _read(path: Path, first_byte: int, first: int, part: tuple[int, ...]) -> np.ndarray:
    plane, count = int(np.prod(part[1:])), int(np.prod(part))
    try:
        found = np.fromfile(path, np.float16, count, offset=first_byte + first * plane * np.dtype(np.float16).itemsize)
        return found.reshape(part)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _checked(path: Path, shape: tuple[int, ...], crc32: int) -> int:
    """The first byte of the numbers in a .npy file. DataError unless it has this shape and checksum, and float16."""
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("another version of .npy")
            found, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            first_byte, checksum = file.tell(), 0
            while chunk := file.read(_CHUNK_BYTES):
                checksum = zlib.crc32(chunk, checksum)
    except Exception as error:  # NumPy raises many kinds
        raise _damaged(path, error) from None
    if (found, fortran, dtype) != (shape, False, np.dtype(np.float16)):
        raise _damaged(path, f"{dtype}{list(found)}, expected float16{list(shape)}")
    if checksum != crc32:
        raise _damaged(path, "wrong checksum")
    return first_byte


def _damaged(path: Path, found: Any) -> DataError:
    return DataError(
        f"{path}: found a damaged cache entry ({found}); expected what was written; delete the folder of this entry and run again"
    )
