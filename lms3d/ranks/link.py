"""The link of a rank to the others, whatever carries it: Horovod (`horovod`) or TensorFlow's own collectives (`collectives`).

Every method but `average` runs at once, on the host, and all ranks must call it in the same order. Collectives take tensors, and so
need TensorFlow's devices, whose limits the ranks may still have to agree on. Before the devices exist, messages go the way on which
the ranks have met (`meeting`).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lms3d.errors import InputError
from lms3d.ranks.meeting import Meeting
from lms3d.ranks.mpi import Mpi

if TYPE_CHECKING:
    import tensorflow as tf


class Link(ABC):
    """The link of one rank to the others. Each object connects anew."""

    speaks_mpi: bool
    """Whether the ranks met through MPI."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._is_chief = meeting.rank == 0
        self.speaks_mpi = isinstance(meeting, Mpi)
        self._received = hashlib.sha256()  # of all messages so far that did not go through collectives
        self._devices_exist = False
        self._exchanges = 0
        self._counts: list[Callable[[], int]] = []

    @abstractmethod
    def place(self) -> dict[str, int]:
        """The rank, size, local_rank and local_size of this process."""

    @abstractmethod
    def close(self, together: bool = True) -> None:
        """Leaves the job. Ranks that still wait for this one get an error. together: False if this rank alone leaves."""

    def devices_exist(self) -> None:
        """Notes that TensorFlow has its devices on all ranks. Messages go through collectives from now on.

        InputError if the ranks have received different messages before: anybody may write to the store of horovodrun.
        """
        self._connect()
        self._devices_exist = True
        if len(set(self.gather_bytes(self._received.digest()))) > 1:
            raise InputError(
                "the ranks have not all read what rank 0 wrote at the start; keep somebody else from the ports of the "
                "launcher (a firewall), and start again"
            )

    @abstractmethod
    def _connect(self) -> None:
        """Makes collectives possible, now that TensorFlow has its devices."""

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
        return self._gathered(np.asarray(values, np.float64))

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """The messages of all ranks, of any lengths."""
        lengths = self.gather([len(message)])[:, 0].astype(int).tolist()
        return self._gathered_messages(message, lengths)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean over the ranks of a float array, which has the same shape on each."""
        self._exchanges += 1
        return self._mean(values)

    def broadcast(self, message: bytes) -> bytes:
        """The message of rank 0, on every rank."""
        if self._devices_exist:
            self._exchanges += 1
            return self._of_chief(message)
        message = self._meeting.broadcast(message)
        self._received.update(hashlib.sha256(message).digest())
        return message

    def gather_on_chief(self, message: bytes) -> list[bytes]:
        """On rank 0 the messages of all ranks, which must have the same length; [] on the others. Needs no devices."""
        return self._meeting.gather(message)

    @abstractmethod
    def _gathered(self, row: np.ndarray) -> np.ndarray:
        """The rows of all ranks, (ranks, values). row: (values,) in float64."""

    @abstractmethod
    def _gathered_messages(self, message: bytes, lengths: Sequence[int]) -> list[bytes]:
        """The messages of all ranks. lengths: how long each is."""

    @abstractmethod
    def _mean(self, values: np.ndarray) -> np.ndarray:
        """The mean over the ranks."""

    @abstractmethod
    def _of_chief(self, message: bytes) -> bytes:
        """The message of rank 0, by collectives."""

    # -- in the step's graph -------------------------------------------------------------------------------------------

    @abstractmethod
    def average(self, tensors: Sequence[tf.Tensor], compression: str, name: str) -> list[tf.Tensor]:
        """The means over the ranks of tensors of one type, by ops whose order is the same on all ranks.

        The ranks identify the ops by `name`, whatever scope they are traced in. compression: "none" or "fp16".
        """
