"""A case of a cache, read plane by plane: its image need not fit into memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.data.errors import DataError
from lms3d.data.volumes import normalise, patches
from lms3d.data.volumes.cache import Cache
from lms3d.data.volumes.normalise import Normalisation

_CHUNK_BYTES = 8 << 20


def image_planes(normalisation: Normalisation, cache: Cache, case_id: str) -> Callable[[int, int], np.ndarray]:
    """A function: first, end -> these planes of the image of a case along its first axis, (end - first, B, C, channels) float32,
    as a network takes them. DataError for a damaged entry."""
    stored, normalised = _stored(cache, case_id), _normalised(normalisation, cache, case_id)
    return lambda first, end: normalised(stored(first, end))


def beyond(normalisation: Normalisation, cache: Cache, case_id: str) -> np.ndarray:
    """The values (channels,) float32 around the image of a case, if a patch is larger: its smallest intensities, as a network takes
    them, so that a prediction pads as training does. The smallest z-scores are others if the background stays 0."""
    stored, (a, _, _) = _stored(cache, case_id), cache.shape_of(case_id)
    lowest = np.min([patches.smallest(stored(first, first + 1)) for first in range(a)], axis=0)
    return np.asarray(_normalised(normalisation, cache, case_id)(lowest.reshape(1, 1, 1, -1)).ravel())


def _stored(cache: Cache, case_id: str) -> Callable[[int, int], np.ndarray]:
    """A function: first, end -> these planes as they are stored. DataError for a damaged entry."""
    entry, path = cache.entry(case_id), cache.directory / case_id / "image.npy"
    shape = (*cache.shape_of(case_id), len(entry["scale"]))
    first_byte = _checked(path, shape, entry["files"]["image.npy"]["crc32"])
    return lambda first, end: _read(path, first_byte, first, (end - first, *shape[1:]))


def _normalised(normalisation: Normalisation, cache: Cache, case_id: str) -> Callable[[np.ndarray], np.ndarray]:
    """A function: stored planes -> planes as a network takes them."""
    entry = cache.entry(case_id)
    scale = np.asarray(entry["scale"], np.float32)
    return lambda stored: normalise.apply(normalisation, stored, scale, entry, np.empty(stored.shape, np.float32))


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
