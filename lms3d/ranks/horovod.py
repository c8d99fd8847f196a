"""The link between ranks, by Horovod. Import this module only if there are several ranks.

Every method but `average` runs at once, on the host, and all ranks must call it in the same order. Horovod's own broadcast takes
tensors, and so needs TensorFlow's devices, whose limits the ranks may still have to agree on. Before the devices exist, `broadcast`
goes through MPI if MPI started the ranks, otherwise through the store of horovodrun.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
from collections.abc import Callable, Sequence

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from lms3d.errors import InputError
from lms3d.ranks.mpi import Mpi
from lms3d.ranks.store import Store


class Horovod:
    """The link to the other ranks. Each object connects anew, as an elastic job needs."""

    def __init__(self) -> None:
        by_mpi = hvd.mpi_built() and os.environ.get("HOROVOD_CONTROLLER") != "gloo"
        self._mpi = Mpi(mpi_library()) if by_mpi else None
        hvd.init()
        self._is_chief = hvd.rank() == 0
        self._keys = itertools.count()  # of messages in the store
        self._received = hashlib.sha256()  # of all messages so far that did not go through Horovod
        self._devices_exist = False
        self._exchanges = 0
        self._counts: list[Callable[[], int]] = []

    def place(self) -> dict[str, int]:
        """The rank, size, local_rank and local_size of this process."""
        return {"rank": hvd.rank(), "size": hvd.size(), "local_rank": hvd.local_rank(), "local_size": hvd.local_size()}

    @property
    def speaks_mpi(self) -> bool:
        """Whether the ranks met through MPI."""
        return self._mpi is not None

    def close(self, together: bool = True) -> None:
        """Leaves the job. Ranks that still wait for this one get an error.

        together: False if this rank alone leaves. MPI's finalisation would wait for the others, which may be busy for hours; if a
        process fails without it, the launcher ends the others.
        """
        hvd.shutdown()
        if self._mpi is not None and together:
            self._mpi.close()

    def devices_exist(self) -> None:
        """Notes that TensorFlow has its devices on all ranks. Messages go through TensorFlow from now on.

        InputError if the ranks have received different messages before: anybody may write to the store of horovodrun.
        """
        self._devices_exist = True
        if len(set(self.gather_bytes(self._received.digest()))) > 1:
            raise InputError(
                "the ranks have not all read what rank 0 wrote at the start; keep somebody else from the ports of the "
                "launcher (a firewall), and start again"
            )

    # -- exchanges -----------------------------------------------------------------------------------------------------

    def begun(self) -> int:
        """The number of exchanges that this rank has begun, in the methods below and in the steps. Any thread may call it."""
        return self._exchanges + sum(count() for count in self._counts)

    def count(self, begun: Callable[[], int]) -> None:
        """Adds a counter. begun: returns the number of exchanges that the steps of a model have begun."""
        self._counts.append(begun)

    # -- values --------------------------------------------------------------------------------------------------------

    def gather(self, values: Sequence[float]) -> np.ndarray:
        """The values of all ranks, (ranks, values) in float64, the same bits on every rank."""
        self._exchanges += 1
        with tf.device("CPU:0"):
            row = tf.constant(np.asarray(values, np.float64)[None])
            return np.array(hvd.allgather(row, name="numbers"))

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """The messages of all ranks, of any lengths."""
        lengths = self.gather([len(message)])[:, 0].astype(int)
        with tf.device("CPU:0"):
            joined = np.array(hvd.allgather(tf.constant(np.frombuffer(message, np.uint8)), name="messages"))
        ends = np.cumsum(lengths)
        return [joined[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean over the ranks of a float array, which has the same shape on each."""
        self._exchanges += 1
        with tf.device("CPU:0"):
            return np.array(hvd.allreduce(tf.constant(values), op=hvd.Average, name="mean"))

    def broadcast(self, message: bytes) -> bytes:
        """The message of rank 0, on every rank."""
        if self._devices_exist:
            return self._through_tensorflow(message)
        message = self._mpi.broadcast(message, self._is_chief) if self._mpi else self._through_store(message)
        self._received.update(hashlib.sha256(message).digest())
        return message

    def gather_on_chief(self, message: bytes) -> list[bytes]:
        """On rank 0 the messages of all ranks, which must have the same length; [] on the others. Needs no devices."""
        if self._mpi:
            return self._mpi.gather(message, hvd.size(), self._is_chief)
        store, key = _store(), next(self._keys)
        if self._is_chief:
            return [message, *(store.get(f"{key}-{rank}") for rank in range(1, hvd.size()))]
        store.put(f"{key}-{hvd.rank()}", message)
        return []

    def _through_tensorflow(self, message: bytes) -> bytes:
        self._exchanges += 1
        with tf.device("CPU:0"):
            length = int(hvd.broadcast(tf.constant([len(message)], tf.int64), 0, name="length")[0])
            content = np.frombuffer(message, np.uint8) if self._is_chief else np.zeros(length, np.uint8)
            return np.array(hvd.broadcast(tf.constant(content), 0, name="message")).tobytes()

    def _through_store(self, message: bytes) -> bytes:
        """Rank 0 writes the message into the store in which horovodrun's ranks met; the others read it there."""
        store, key = _store(), str(next(self._keys))
        if not self._is_chief:
            return store.get(key)
        store.put(key, message)
        return message

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


def _store() -> Store:
    return Store(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
