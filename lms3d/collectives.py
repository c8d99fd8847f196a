"""Horovod behind a few functions: bytes and numbers to and from every rank, and the mean of gradients.

Import it only where there are several ranks. Everything but `average` runs at once, on the host, and must be called by
all ranks in the same order. Before TensorFlow has its devices, whose limits may still have to be agreed on, `broadcast`
takes another way: the key-value store of horovodrun, or MPI.
"""

from __future__ import annotations

import itertools
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from lms3d.distributed import World

POLL_SECONDS = 0.05
COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}

_messages = itertools.count()
_devices_exist = False


def start() -> dict[str, int]:
    """Meets the other ranks; returns the fields of `World`. Ranks of an elastic job may meet more than once."""
    global _messages, _devices_exist
    hvd.init()
    _messages, _devices_exist = itertools.count(), False  # as new ranks have it; the store is empty again
    return {"rank": hvd.rank(), "size": hvd.size(), "local_rank": hvd.local_rank(), "local_size": hvd.local_size()}


def close() -> None:
    """Leaves the others; those who still wait for this rank get an error."""
    hvd.shutdown()


def devices_exist() -> None:
    """Say, on all ranks, that TensorFlow has its devices, so that messages may go through it."""
    global _devices_exist
    _devices_exist = True


# -- values ------------------------------------------------------------------------------------------------------------


def packed(value: Any) -> bytes:
    """A value as bytes for `unpacked`, on ranks that run the same program."""
    return bytes(cloudpickle.dumps(value))


def unpacked(message: bytes) -> Any:
    """The inverse of `packed`."""
    return cloudpickle.loads(message)


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
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ:
        return _through_store(world, message)
    return _through_mpi(message)


def broadcast_on_host(message: bytes) -> bytes:
    """`broadcast` with TensorFlow's help."""
    with tf.device("CPU:0"):
        length = int(hvd.broadcast(tf.constant([len(message)], tf.int64), 0, name="length")[0])
        content = np.frombuffer(message, np.uint8) if hvd.rank() == 0 else np.zeros(length, np.uint8)
        return np.array(hvd.broadcast(tf.constant(content), 0, name="message")).tobytes()


def _through_store(world: World, message: bytes) -> bytes:
    """Rank 0 writes the message into the store in which horovodrun's ranks found each other; the others read it there."""
    address, port = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    url = f"http://{address}:{port}/lms3d/{next(_messages)}"
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # never by a proxy
    if world.is_chief:
        ask(urllib.request.Request(url, data=message, method="PUT")).close()
        return message
    while True:  # rank 0 may prepare data for hours; if it ends, the launcher ends this process as well
        try:
            with ask(url) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            time.sleep(POLL_SECONDS)


def _through_mpi(message: bytes) -> bytes:
    try:
        from mpi4py import MPI
    except ImportError as error:
        from lms3d.errors import InputError

        raise InputError(
            f"ranks that MPI starts need mpi4py besides Horovod ({error}); install it, or start with horovodrun --gloo"
        ) from None
    return bytes(MPI.COMM_WORLD.bcast(message, 0))


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
