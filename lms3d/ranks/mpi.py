"""Sends bytes from rank 0 to all, and from all to rank 0, through MPI itself, before TensorFlow has devices.

It uses the library that Horovod is linked with. So nothing more has to be installed, and there is no second MPI in the process, as
mpi4py might bring. In C a communicator is the address of an object in Open MPI, and a number in MPICH and in the libraries that
keep its ABI (Intel, Cray, MVAPICH, since 2014).
"""

from __future__ import annotations

import ctypes
import os
import time

from lms3d.errors import InputError

POLL_SECONDS = 0.02
_MULTIPLE = 3  # MPI_THREAD_MULTIPLE: this thread may call beside Horovod's
_VERSION_BYTES = 8192  # MPI_MAX_LIBRARY_VERSION_STRING of MPICH, the longest of all
_STATUS_BYTES = 256  # larger than the MPI_Status of any MPI
_MPICH_COMM_WORLD, _MPICH_BYTE = 0x44000000, 0x4C00010D


class Mpi:
    """MPI for the life of this process. Make it before Horovod starts, which then leaves MPI running when it ends. `close` it after
    Horovod has ended."""

    def __init__(self, library: ctypes.CDLL) -> None:
        # Horovod's thread waits in MPI all the time. By default Open MPI waits without sleep, on a core that TensorFlow needs.
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
        self._library = library
        level = ctypes.c_int()
        library.MPI_Init_thread(None, None, _MULTIPLE, ctypes.byref(level))
        if level.value < _MULTIPLE:
            raise InputError(
                f"this MPI lets one thread speak at a time (level {level.value}, expected {_MULTIPLE}, MPI_THREAD_MULTIPLE); "
                "load one that was built with threads and make horovod again, or start with horovodrun --gloo"
            )
        self._world, self._byte = _handles(library)
        self.rank, self.size = self._number("rank"), self._number("size")

    def _number(self, kind: str) -> int:
        """The number of this process ("rank"), or of all ("size")."""
        number = ctypes.c_int()
        getattr(self._library, f"MPI_Comm_{kind}")(self._world, ctypes.byref(number))
        return number.value

    def broadcast(self, message: bytes) -> bytes:
        """The message of rank 0, on every rank."""
        length = ctypes.c_int64(len(message))
        self._broadcast(length, ctypes.sizeof(length))
        content = (ctypes.c_char * length.value)()
        if self.rank == 0:
            content.raw = message
        self._broadcast(content, length.value)
        return content.raw

    def gather(self, message: bytes) -> list[bytes]:
        """On rank 0 the messages of all ranks, which must have the same length; [] on the others."""
        length, whole = len(message), len(message) * self.size
        content, joined = ctypes.create_string_buffer(message, length), ctypes.create_string_buffer(whole)
        request = ctypes.c_void_p()
        self._library.MPI_Igather(
            ctypes.byref(content), length, self._byte, ctypes.byref(joined), length, self._byte, 0, self._world,
            ctypes.byref(request),
        )  # fmt: skip
        self._finish(request)
        return [] if self.rank else [joined.raw[start : start + length] for start in range(0, whole, length)]

    def _broadcast(self, buffer: ctypes._CData, length: int) -> None:
        request = ctypes.c_void_p()
        self._library.MPI_Ibcast(ctypes.byref(buffer), length, self._byte, 0, self._world, ctypes.byref(request))
        self._finish(request)

    def _finish(self, request: ctypes.c_void_p) -> None:
        """Waits for a request by polling, with sleep between: rank 0 may prepare data for hours, and MPI's own wait keeps a core
        busy."""
        done, status = ctypes.c_int(), (ctypes.c_char * _STATUS_BYTES)()
        while True:
            self._library.MPI_Test(ctypes.byref(request), ctypes.byref(done), status)
            if done.value:
                return
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Ends MPI. Returns when all ranks have called this."""
        self._library.MPI_Finalize()


def version(library: ctypes.CDLL) -> str:
    """The version of an MPI library, such as "Open MPI v4.1.4". MPI need not run."""
    text, length = ctypes.create_string_buffer(_VERSION_BYTES), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    return text.value.decode(errors="replace").splitlines()[0].split(",")[0].strip()


def _handles(library: ctypes.CDLL) -> tuple[ctypes._SimpleCData, ctypes._SimpleCData]:
    """(MPI_COMM_WORLD, MPI_BYTE) in the form that this library takes."""
    try:
        symbols = [ctypes.c_char.in_dll(library, f"ompi_mpi_{name}") for name in ("comm_world", "byte")]
    except ValueError:
        return ctypes.c_int(_MPICH_COMM_WORLD), ctypes.c_int(_MPICH_BYTE)
    world, byte = (ctypes.c_void_p(ctypes.addressof(symbol)) for symbol in symbols)
    return world, byte
