"""When a link is free: bookings one behind the other, in one process or, through a file, in several. No TensorFlow here.

LINK-1  A booking begins when it was asked for, or where the one before ends, whichever is later. So in any busy stretch bytes
        and seconds keep the link's rate, and what a loaded machine is late by does not add up.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import Protocol

_MOMENT = struct.Struct("d")


class Calendar(Protocol):
    """Of one link and direction. Moments are those of `time.monotonic`, which all processes of a machine share."""

    def book(self, asked: float, seconds: float) -> float:
        """Books the next `seconds` from `asked` on; the moment at which they end."""
        ...


class OwnCalendar:
    """Of one process."""

    def __init__(self) -> None:
        self._free, self._guard = 0.0, threading.Lock()

    def book(self, asked: float, seconds: float) -> float:
        with self._guard:
            self._free = max(asked, self._free) + seconds
            return self._free


class SharedCalendar:
    """Of all processes that name the same file, which holds the moment at which the link is free.

    A process that ends holds up nobody: the lock is held while a booking is written, not while bytes move.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def book(self, asked: float, seconds: float) -> float:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            found = os.pread(self._file, _MOMENT.size, 0)
            free = _MOMENT.unpack(found)[0] if len(found) == _MOMENT.size else 0.0
            end: float = max(asked, free) + seconds
            os.pwrite(self._file, _MOMENT.pack(end), 0)
            return end
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
