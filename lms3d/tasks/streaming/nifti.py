"""NIfTI files that are written plane by plane, whole or not at all, and read plane by plane."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from lms3d.atomic_files import replacing
from lms3d.data.volumes.header import open_file, raw_header
from lms3d.tasks.streaming.volumes import Volume, slabs

_FIRST_BYTE = 352  # of the voxels: behind a header of 348 bytes and 4 that say that no extension follows


def write(volume: Volume, path: Path, header: Any, values: Callable[[np.ndarray], np.ndarray]) -> None:
    """Writes what `values` makes of a volume. StorageError if the disk fails, and then nothing has changed.

    header: a nibabel.Nifti1Header of the grid, with the type of the voxels. values: (.., channels) float32 -> (..), voxel by voxel.
    path: it is compressed if it ends in .gz. The same numbers give the same bytes.
    """
    header = header.copy()
    header.set_data_shape(volume.shape)
    header.set_data_offset(_FIRST_BYTE)
    header.set_slope_inter(1, 0)
    stored = header.get_data_dtype()
    with replacing(path) as partial, _opened(partial) as file:
        file.write(header.binaryblock + b"\0" * (_FIRST_BYTE - len(header.binaryblock)))
        for start, stop in slabs(volume):
            found = values(volume.planes(start, stop))
            file.write(found.transpose(0, 2, 1).astype(stored, order="C").tobytes())  # the first axis is the fastest


def planes(path: Path) -> Iterator[np.ndarray]:
    """The planes (B, A) of a file of shape (A, B, C) that `write` has written: all C, in order. DataError for a damaged one."""
    header = raw_header(path)
    (a, b, c), stored = header.get_data_shape(), header.get_data_dtype()
    with open_file(path) as file:
        file.seek(_FIRST_BYTE)
        for _ in range(c):
            yield np.frombuffer(file.read(a * b * stored.itemsize), stored).reshape(b, a)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
            yield packed  # type: ignore[misc]
