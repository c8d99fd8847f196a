"""The link between ranks, by Horovod. Import this module only if there are several ranks.

The ranks meet through MPI if MPI started them, otherwise through the store of horovodrun.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from lms3d.ranks.link import Link
from lms3d.ranks.meeting import Meeting, StoreMeeting
from lms3d.ranks.mpi import Mpi
from lms3d.ranks.store import Store


class Horovod(Link):
    """The link to the other ranks, by Horovod. Each object connects anew, as an elastic job needs."""

    def __init__(self) -> None:
        by_mpi = hvd.mpi_built() and os.environ.get("HOROVOD_CONTROLLER") != "gloo"
        mpi = Mpi(mpi_library()) if by_mpi else None
        hvd.init()
        super().__init__(mpi or _through_store())

    def place(self) -> dict[str, int]:
        """The rank, size, local_rank and local_size of this process."""
        return {"rank": hvd.rank(), "size": hvd.size(), "local_rank": hvd.local_rank(), "local_size": hvd.local_size()}

    def close(self, together: bool = True) -> None:
        """Leaves the job. Ranks that still wait for this one get an error.

        together: False if this rank alone leaves. MPI's finalisation would wait for the others, which may be busy for hours; if a
        process fails without it, the launcher ends the others.
        """
        hvd.shutdown()
        if self.speaks_mpi and together:
            self._meeting.close()

    def _connect(self) -> None:
        """Does nothing: `hvd.init` has connected the ranks."""

    # -- values --------------------------------------------------------------------------------------------------------

    def _gathered(self, row: np.ndarray) -> np.ndarray:
        with tf.device("CPU:0"):
            return np.array(hvd.allgather(tf.constant(row[None]), name="numbers"))

    def _gathered_messages(self, message: bytes, lengths: Sequence[int]) -> list[bytes]:
        with tf.device("CPU:0"):
            joined = np.array(hvd.allgather(tf.constant(np.frombuffer(message, np.uint8)), name="messages"))
        ends = np.cumsum(lengths)
        return [joined[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]

    def _mean(self, values: np.ndarray) -> np.ndarray:
        with tf.device("CPU:0"):
            return np.array(hvd.allreduce(tf.constant(values), op=hvd.Average, name="mean"))

    def _of_chief(self, message: bytes) -> bytes:
        with tf.device("CPU:0"):
            length = int(hvd.broadcast(tf.constant([len(message)], tf.int64), 0, name="length")[0])
            content = np.frombuffer(message, np.uint8) if self._is_chief else np.zeros(length, np.uint8)
            return np.array(hvd.broadcast(tf.constant(content), 0, name="message")).tobytes()

    # -- in the step's graph -------------------------------------------------------------------------------------------

    def average(self, tensors: Sequence[tf.Tensor], compression: str, name: str) -> list[tf.Tensor]:
        """The means over the ranks of tensors of one type, by one op, since one op cannot be ordered differently on two ranks.

        The ranks identify the op by `name` alone, whatever scope it is traced in. compression: "none" or "fp16".
        """
        return list(
            hvd.grouped_allreduce(
                list(tensors), op=hvd.Average, compression=getattr(hvd.Compression, compression), name=name,
                ignore_name_scope=True,
            )
        )  # fmt: skip


def mpi_library() -> ctypes.CDLL:
    """The MPI library that Horovod was built with. Call it only if `hvd.mpi_built()`."""
    library: ctypes.CDLL = hvd.mpi_ops._basics.MPI_LIB_CTYPES
    return library


def _through_store() -> Meeting:
    """The meeting in the store in which horovodrun's ranks have found each other."""
    address, port = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    return StoreMeeting(Store(address, port), hvd.rank(), hvd.size())
