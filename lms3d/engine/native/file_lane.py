"""The lane whose slots are files (`src/file_lane.h`), and a file of it, as Python values."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lms3d.engine.native.lanes import Lane
from lms3d.engine.native.library import Library, library
from lms3d.engine.tuning import LEAST_MAPPED_BYTES, MOST_PARTS, PART_BYTES
from lms3d.errors import StorageError


class FileLane(Lane):
    """Files in an existing `folder`. in_place: its file system rewrites a block where it lies.

    A failure of the disk that no step waits for is a `failure`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        in_place: bool,
        part_bytes: int = PART_BYTES,
        least_mapped_bytes: int = LEAST_MAPPED_BYTES,
    ) -> None:
        self.folder, native = folder, library()
        parts = min(MOST_PARTS, len(os.sched_getaffinity(0)))
        super().__init__(
            native,
            native.calls.lms3d_file_lane(os.fsencode(folder), in_place, part_bytes, parts, least_mapped_bytes),
        )

    def file(self, slot: int, size: int) -> SwapFile:
        """The file of a slot of `size` bytes, to move bytes without a step."""
        return SwapFile(library(), self, slot, size)

    def begin(self) -> None:
        """Forgets earlier failures."""
        self._calls.lms3d_file_begin(self.number)

    @property
    def failure(self) -> str:
        """The first failure since then: "No space left on device while ..."; empty if there was none."""
        return self._calls.lms3d_file_failed(self.number).decode()

    def check(self, waited: bool) -> None:
        """Called after a function. StorageError if the disk has failed to keep the bytes that were written.

        waited: the process has waited for a page of a map meanwhile.
        """
        self._raise(self._calls.lms3d_file_check(self.number, waited))


class SwapFile:
    """The bytes of one slot (`src/swap_file.h`). StorageError if the disk fails, is full, or has lost bytes."""

    def __init__(self, native: Library, lane: FileLane, slot: int, size: int) -> None:
        self._calls, self._lane, self._slot, self.size = native.calls, lane, slot, size
        self.path = lane.folder / f"{slot}.bin"

    @property
    def place(self) -> np.ndarray:
        """The bytes where they lie, as a flat array. Only read it, and only while the lane has the slot."""
        address = self._number(self._calls.lms3d_file_place)
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(address))

    def write(self, data: np.ndarray) -> bool:
        """Writes the flat array of bytes `data`. True if the page cache held the whole file already."""
        self._check_size(data)
        return bool(self._number(self._calls.lms3d_file_write, data.ctypes.data))

    def read(self, data: np.ndarray) -> None:
        """Fills the flat array of bytes `data` with the bytes that were written last."""
        self._check_size(data)
        self._raise(self._calls.lms3d_file_read(self._lane.number, self._slot, data.ctypes.data))

    def fetch(self) -> int:
        """Brings dropped pages back, before the bytes are read in place; returns how many bytes were read."""
        return self._number(self._calls.lms3d_file_fetch)

    def sync(self) -> None:
        """Raises StorageError if not all bytes that were written last are on the disk."""
        self._raise(self._calls.lms3d_file_sync(self._lane.number, self._slot))

    def remove(self) -> None:
        """Removes the file. The slot stays, and the next write makes a new file."""
        self._raise(self._calls.lms3d_file_remove(self._lane.number, self._slot))

    def _number(self, call: Callable[..., bytes], *arguments: int) -> int:
        number = ctypes.c_int64()
        self._raise(call(self._lane.number, self._slot, *arguments, ctypes.byref(number)))
        return number.value

    def _check_size(self, data: np.ndarray) -> None:
        if data.nbytes != self.size or not data.flags.c_contiguous:
            raise ValueError(f"a swap file of {self.size} bytes takes as many, not an array of {data.nbytes}")

    def _raise(self, failure: bytes) -> None:
        if failure:
            raise StorageError(failure.decode())
