"""A lane (`src/lanes.h`) as a Python value: where the bytes of swapped tensors go, and how they are counted.

The lane of files is in `files`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

from lms3d.engine.native.library import Library, library
from lms3d.errors import StorageError

_FIGURES = 5
CUDA_DRIVER = "libcuda.so.1"
_slots = itertools.count()


@dataclass(frozen=True)
class Counted:
    """The figures of ended copies: bytes and busy seconds each way, and processor seconds of copying (0 on a GPU)."""

    out_bytes: float
    in_bytes: float
    out_seconds: float
    in_seconds: float
    processor_seconds: float


class Lane:
    """A lane. It is closed with its last reference, at the latest. A fork leaves it alone, since its threads are the parent's.

    number: the attribute of the operations that use the lane.
    """

    def __init__(self, native: Library, number: int) -> None:
        if not number:
            raise StorageError(native.calls.lms3d_failure().decode())
        self._calls, self.number = native.calls, number
        self._end = weakref.finalize(self, _close, native.calls, number, os.getpid())

    def reserve(self, size: int) -> int:
        """A new slot for `size` bytes."""
        slot = next(_slots)
        self._raise(self._calls.lms3d_reserve(self.number, slot, size))
        return slot

    def drop(self, slot: int) -> None:
        """Gives back a slot whose graph will not run again, after its copies have ended."""
        self._calls.lms3d_drop(self.number, slot)

    def settle(self) -> None:
        """Waits for all copies and lets go of the device's memory, after a step that failed halfway."""
        self._raise(self._calls.lms3d_settle(self.number))

    def take(self) -> Counted:
        """The figures of the copies since the last call."""
        figures = (ctypes.c_double * _FIGURES)()
        self._calls.lms3d_take(self.number, figures)
        return Counted(*figures)

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def close(self) -> None:
        self._end()

    def _raise(self, failure: bytes) -> None:
        if failure:
            raise StorageError(failure.decode())


def _close(calls: ctypes.CDLL, number: int, owner: int) -> None:
    if os.getpid() == owner:
        calls.lms3d_close(number)


def memory(
    out_bytes_per_second: float = 0.0,
    in_bytes_per_second: float = 0.0,
    latency_seconds: float = 0.0,
    bus: Path | None = None,
) -> Lane:
    """A lane to another part of this process's memory. Rates of 0 mean as fast as possible. bus: a folder; processes that name the
    same one share a link."""
    native = library()
    words = b"" if bus is None else str(bus).encode()
    return Lane(
        native, native.calls.lms3d_memory_lane(out_bytes_per_second, in_bytes_per_second, latency_seconds, words)
    )


def cuda() -> Lane:
    """A lane to page-locked host memory beside the GPUs of this process. StorageError without CUDA's driver."""
    native = library()
    return Lane(native, native.calls.lms3d_cuda_lane(CUDA_DRIVER.encode()))
