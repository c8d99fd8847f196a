"""How ranks talk before TensorFlow has devices: through MPI (`mpi.Mpi`) if MPI started them, else through a launcher's store."""

from __future__ import annotations

import ctypes
import itertools
import os
from typing import Protocol

from lms3d.errors import InputError
from lms3d.ranks.mpi import Mpi
from lms3d.ranks.store import Store

RANK, SIZE, STORE = "LMS3D_RANK", "LMS3D_SIZE", "LMS3D_STORE"
"""The environment variables that `lms3d.launch` gives each rank: its number, their number, and the store as address:port/scope."""
_MPI_LIBRARIES = ("libmpi.so.40", "libmpi.so.12", "libmpi.so")  # Open MPI 4 and 5, MPICH's ABI, any


class Meeting(Protocol):
    """A way from rank to rank. All ranks must call its methods in the same order."""

    rank: int
    size: int

    def broadcast(self, message: bytes) -> bytes:
        """The message of rank 0, on every rank."""

    def gather(self, message: bytes) -> list[bytes]:
        """On rank 0 the messages of all ranks, which must have the same length; [] on the others."""

    def close(self) -> None:
        """Ends the meeting. Returns when all ranks have called this."""


class StoreMeeting:
    """The meeting of ranks that know one store."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank, self.size, self._store = rank, size, store
        self._keys = itertools.count()

    def broadcast(self, message: bytes) -> bytes:
        """The message of rank 0, which writes it into the store; the others read it there."""
        key = str(next(self._keys))
        if self.rank:
            return self._store.get(key)
        self._store.put(key, message)
        return message

    def gather(self, message: bytes) -> list[bytes]:
        """On rank 0 the messages of all ranks; [] on the others."""
        key = next(self._keys)
        if self.rank:
            self._store.put(f"{key}-{self.rank}", message)
            return []
        return [message, *(self._store.get(f"{key}-{rank}") for rank in range(1, self.size))]

    def close(self) -> None:
        """Returns when all ranks have called this."""
        self.gather(b"")
        self.broadcast(b"")


def of_launcher() -> Meeting:
    """The meeting of this process with the others that its launcher has started. No Horovod is needed.

    InputError if it was started by MPI and there is no MPI library.
    """
    environ = os.environ
    if STORE in environ:
        address, scope = environ[STORE].split("/")
        host, port = address.split(":")
        return StoreMeeting(Store(host, int(port), scope=scope), int(environ[RANK]), int(environ[SIZE]))
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in environ:
        store = Store(environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
        return StoreMeeting(store, int(environ["HOROVOD_RANK"]), int(environ["HOROVOD_SIZE"]))
    return Mpi(_mpi_library())


def _mpi_library() -> ctypes.CDLL:
    for name in _MPI_LIBRARIES:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)  # its plug-ins look for its symbols
        except OSError:
            continue
    raise InputError(
        f"several ranks were started, but none of {', '.join(_MPI_LIBRARIES)} loads, through which they would meet; put the MPI of "
        "the launcher on LD_LIBRARY_PATH, or start with python -m lms3d.launch"
    )
