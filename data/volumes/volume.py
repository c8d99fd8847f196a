"""Reads the voxels of a NIfTI file.

A compressed file is read to its end, which holds the checksum of all its bytes. Every function raises DataError, which names the
file, for a file that cannot be used.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.arrayproxy import ArrayProxy

from lms3d.data.volumes.header import Header, open_file, read_header, text, unreadable, unusable

_BEHIND = 4096  # so many bytes may follow the voxels


def read(path: Path, dtype: Any = None) -> tuple[np.ndarray, Header]:
    """The voxels, (X, Y, Z) or (X, Y, Z, C), scaled as the header says, and the header. dtype: that of the result; None: nibabel's
    choice."""
    header = read_header(path)
    try:
        content = io.BytesIO(_content(path, header.bytes))
        proxy = ArrayProxy(content, (header.shape, header.dtype, header.first_byte, *header.scale), mmap=False)
        with np.errstate(over="ignore", invalid="ignore"):  # what becomes infinite is refused below
            array = np.asanyarray(proxy) if dtype is None else np.asarray(proxy, dtype=dtype)
    except Exception as error:  # nibabel, zlib and gzip raise many kinds
        raise unreadable(path, error) from None
    _require_finite(path, array)
    return array, header


def read_volume(path: Path, dtype: Any = None) -> tuple[np.ndarray, Header]:
    """The same as `read`, for a file that holds a single volume (X, Y, Z)."""
    require_volume(path, read_header(path))
    return read(path, dtype)


def require_volume(path: Path, header: Header) -> None:
    """DataError if the file holds several volumes."""
    if len(header.shape) != 3:
        found = f"{header.shape[3]} volumes ({text(header.shape)})"
        raise unusable(path, found, "one (3 axes)", "give a file of its own for each modality and for the truth")


def _content(path: Path, size: int) -> bytes:
    """The first `size` bytes. ValueError if there are fewer, or many more."""
    with open_file(path) as stream:
        content: bytes = stream.read(size)
        rest = stream.read(_BEHIND + 1)  # at the end of a compressed file the checksum is compared
    if len(content) < size:
        raise ValueError(f"it ends after {len(content):,} of {size:,} bytes")
    if len(rest) > _BEHIND:
        raise ValueError(f"it goes on after the {size:,} bytes that its header tells of")
    return content


def _require_finite(path: Path, array: np.ndarray) -> None:
    if array.dtype.kind in "iu":
        return
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise unusable(path, f"{bad} voxels that are NaN or infinite", "finite numbers", "repair the file")
