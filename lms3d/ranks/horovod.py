"""Horovod behind a few functions: bytes and numbers to and from every rank, and the mean of gradients.

Import it only where there are several ranks. Everything but `average` runs at once, on the host, and must be called by
all ranks in the same order. Before TensorFlow has its devices, whose limits may still have to be agreed on, `broadcast`
takes another way, since Horovod's takes tensors: MPI, where MPI started the ranks, or the store of horovodrun.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from lms3d.errors import InputError
from lms3d.ranks.mpi import Mpi
from lms3d.ranks.store import Store

if TYPE_CHECKING:
    from lms3d.ranks.world import World

COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}

_numbers = itertools.count()
_early = hashlib.sha256()
_devices_exist = False
_mpi: Mpi | None = None


def start() -> dict[str, int]:
    """Meets the other ranks; returns the fields of `World`. Ranks of an elastic job may meet more than once."""
    global _numbers, _early, _devices_exist, _mpi
    if _mpi is None and hvd.mpi_built() and os.environ.get("HOROVOD_CONTROLLER") != "gloo":
        _mpi = Mpi(hvd.mpi_ops._basics.MPI_LIB_CTYPES)
    hvd.init()
    _numbers, _early, _devices_exist = (
        itertools.count(),
        hashlib.sha256(),
        False,
    )  # as new ranks have them; the store is empty
    return {"rank": hvd.rank(), "size": hvd.size(), "local_rank": hvd.local_rank(), "local_size": hvd.local_size()}


def speaks_mpi() -> bool:
    """Whether the ranks met through MPI."""
    return _mpi is not None


def close(together: bool = True) -> None:
    """Leaves the others; those who still wait for this rank get an error.

    together: False where this rank alone leaves. MPI's end would wait for the others, who may be busy for hours; a process
    that fails without it makes the launcher end them.
    """
    global _mpi
    hvd.shutdown()
    if _mpi is not None and together:
        _mpi.close()
    _mpi = None


def devices_exist() -> None:
    """Say, on all ranks, that TensorFlow has its devices, so that messages may go through it.

    InputError where the ranks have not all read the same before: anybody may write to the store of horovodrun.
    """
    global _devices_exist
    _devices_exist = True
    if len(set(gather_bytes(_early.digest()))) > 1:
        raise InputError(
            "the ranks have not all read what rank 0 wrote at the start; keep somebody else from the ports of the launcher "
            "(a firewall), and start again"
        )


# -- values ------------------------------------------------------------------------------------------------------------


def gather(values: Sequence[float]) -> np.ndarray:
    """(ranks, values) float64, the same bits on every rank."""
    with tf.device("CPU:0"):
        row = tf.constant(np.asarray(values, np.float64)[None])
        return np.array(hvd.allgather(row, name="numbers"))


def gather_bytes(message: bytes) -> list[bytes]:
    """The messages of all ranks, of any lengths."""
    lengths = gather([len(message)])[:, 0].astype(int)
    with tf.device("CPU:0"):
        joined = np.array(hvd.allgather(tf.constant(np.frombuffer(message, np.uint8)), name="messages"))
    ends = np.cumsum(lengths)
    return [joined[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]


def mean(values: np.ndarray) -> np.ndarray:
    """Mean over the ranks of a float array of the same shape on each."""
    with tf.device("CPU:0"):
        return np.array(hvd.allreduce(tf.constant(values), op=hvd.Average, name="mean"))


def broadcast(world: World, message: bytes) -> bytes:
    """What rank 0 passes, on every rank."""
    if _devices_exist:
        return broadcast_on_host(message)
    message = _mpi.broadcast(message, world.is_chief) if _mpi is not None else _through_store(world, message)
    _early.update(hashlib.sha256(message).digest())
    return message


def broadcast_on_host(message: bytes) -> bytes:
    """`broadcast` with TensorFlow's help."""
    with tf.device("CPU:0"):
        length = int(hvd.broadcast(tf.constant([len(message)], tf.int64), 0, name="length")[0])
        content = np.frombuffer(message, np.uint8) if hvd.rank() == 0 else np.zeros(length, np.uint8)
        return np.array(hvd.broadcast(tf.constant(content), 0, name="message")).tobytes()


def _through_store(world: World, message: bytes) -> bytes:
    """Rank 0 writes the message into the store in which horovodrun's ranks found each other; the others read it there."""
    store = Store(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
    key = str(next(_numbers))
    if not world.is_chief:
        return store.get(key)
    store.put(key, message)
    return message


# -- in the step's graph -----------------------------------------------------------------------------------------------


def average(tensors: Sequence[tf.Tensor], compression: str, name: str) -> list[tf.Tensor]:
    """Means over the ranks of tensors of one type, by one op: what is one op cannot be ordered differently on two ranks.

    The ranks know the op by `name` alone, whatever scope it is traced in.
    """
    return list(
        hvd.grouped_allreduce(
            list(tensors), op=hvd.Average, compression=COMPRESSIONS[compression], name=name, ignore_name_scope=True
        )
    )
