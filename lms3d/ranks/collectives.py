"""The link between ranks, by TensorFlow's own collectives: no library has to be built. Import it only if there are several ranks.

Each rank runs TensorFlow's server, through which the others reach its collectives. On processors tensors go in a ring from server
to server; each part of a tensor is summed in a fixed order, and the sum is then sent on. So all ranks get the same bits, each time.
On GPUs NCCL does it.

An op is known to the other ranks by a key, here a hash of its name, type and shape: so ranks may trace their graphs in any order.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lms3d import console
from lms3d.console import quiet_native_log
from lms3d.errors import InputError
from lms3d.ranks import gate, messages, tensorflow_server
from lms3d.ranks.link import Link
from lms3d.ranks.meeting import Meeting

BUCKET_BYTES = 4 << 20
"""Gradients are joined into pieces of about this size, one exchanged after another. Larger ones take more memory, and took longer:
33 MB between two ranks on two busy cores, best of 8: 0.35 s whole, 0.22 s in pieces of 8 MB, 0.17 s of 4 MB, 0.15 s of 1 MB."""
_HERE = "127.0.0.1"
_NAME_BYTES = 256  # more than any host name has
_WORD = 8
_ON_HOST, _ON_GPU = 1, 2  # groups of devices


class Collectives(Link):
    """The link to the other ranks, by TensorFlow. There can be one in a process. InputError if the ranks are on several
    machines."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting)
        self.rank, self.size = meeting.rank, meeting.size
        names = self.gather_on_chief(socket.gethostname().encode()[:_NAME_BYTES].ljust(_NAME_BYTES))
        self._hosts: list[bytes] = messages.unpacked(self.broadcast(messages.packed(names)))
        if len(set(self._hosts)) > 1:
            raise InputError(
                f"the ranks are on {len(set(self._hosts))} machines, and TensorFlow's collectives link those of one; install "
                "Horovod with make horovod, and leave out --ranks tensorflow"
            )

    def place(self) -> dict[str, int]:
        """The rank, size, local_rank and local_size of this process."""
        own = self._hosts[self.rank]
        local = [rank for rank, host in enumerate(self._hosts) if host == own]
        return {"rank": self.rank, "size": self.size, "local_rank": local.index(self.rank), "local_size": len(local)}

    def close(self, together: bool = True) -> None:
        """Leaves the job, when all are here if they leave together: a server must not end while another rank still reads from it.

        together: False if this rank alone leaves. The others then find its server gone.
        """
        if together:
            self._meeting.close()

    def _connect(self) -> None:
        with socket.socket() as free:
            free.bind((_HERE, 0))
            port = free.getsockname()[1]
        ports = self.gather_on_chief(f"{port:<5}".encode())
        of_all = messages.unpacked(self.broadcast(messages.packed([int(port) for port in ports])))
        with quiet_native_log():
            tensorflow_server.start([f"{_HERE}:{port}" for port in of_all], self.rank)
        try:
            gate.close_to_strangers(port, [_HERE])
        except OSError as error:
            raise InputError(
                f"--ranks tensorflow: TensorFlow's server runs whatever anybody sends it, and cannot be closed to other machines "
                f"here ({error}); use Horovod"
            ) from None
        if self._is_chief:
            console.say("TensorFlow's collectives link the ranks; they trust every user of this machine (SECURITY.md)")

    # -- values --------------------------------------------------------------------------------------------------------

    def _gathered(self, row: np.ndarray) -> np.ndarray:
        return self._run("CollectiveGatherV2", row[None], ordering_token=[])

    def _gathered_messages(self, message: bytes, lengths: Sequence[int]) -> list[bytes]:
        rows = self._run("CollectiveGatherV2", _words(message, max(lengths))[None], ordering_token=[])
        return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]

    def _mean(self, values: np.ndarray) -> np.ndarray:
        return self._run("CollectiveReduceV2", values, merge_op="Add", final_op="Div", ordering_token=[])

    def _of_chief(self, message: bytes) -> bytes:
        length = int(self._gathered(np.array([len(message)], np.float64))[0, 0])
        if self._is_chief:
            self._run("CollectiveBcastSendV2", _words(message, length))
            return message
        shape = _words(b"", length).shape
        key = _key("CollectiveBcastSendV2", tf.int64, shape)
        with tf.device("CPU:0"):
            return np.array(
                tf.raw_ops.CollectiveBcastRecvV2(
                    group_size=self.size, group_key=_ON_HOST, instance_key=key, shape=shape, T=tf.int64,
                    communication_hint="ring",
                )
            ).tobytes()[:length]  # fmt: skip

    def _run(self, op: str, values: np.ndarray, **attributes: Any) -> np.ndarray:
        """The result of a collective on the host, now."""
        with tf.device("CPU:0"):
            tensor = tf.constant(values)
            return np.array(
                getattr(tf.raw_ops, op)(
                    input=tensor, group_size=self.size, group_key=_ON_HOST,
                    instance_key=_key(op, tensor.dtype, tensor.shape), communication_hint="ring", **attributes,
                )
            )  # fmt: skip

    # -- in the step's graph -------------------------------------------------------------------------------------------

    def average(self, tensors: Sequence[tf.Tensor], compression: str, name: str) -> list[tf.Tensor]:
        """The means over the ranks of tensors of one type, by ops that run one after another, so in one order on all ranks.

        The ranks identify the ops by `name` and by what they exchange. compression: "none" or "fp16".
        """
        dtype = tensors[0].dtype
        halved = compression == "fp16" and dtype in (tf.float32, tf.float64)
        means: list[tf.Tensor] = []
        for number, bucket in enumerate(_buckets(tensors)):
            with tf.control_dependencies(means[-1:]):
                bucket = [tf.cast(t, tf.float16) for t in bucket] if halved else bucket
                means += self._averaged(bucket, f"{name}/{number}")
        return [tf.cast(mean, dtype) for mean in means] if halved else means

    def _averaged(self, bucket: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """The means of tensors that are joined into one."""
        if len(bucket) == 1:
            return [self._reduced(bucket[0], name)]
        joined = self._reduced(tf.concat([tf.reshape(t, [-1]) for t in bucket], 0), name)
        parts = tf.split(joined, [t.shape.num_elements() for t in bucket])
        return [tf.reshape(part, t.shape) for part, t in zip(parts, bucket, strict=True)]

    def _reduced(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        with tf.device("GPU:0" if on_gpu else "CPU:0"):
            return tf.raw_ops.CollectiveReduceV2(
                input=tensor, group_size=self.size, group_key=_ON_GPU if on_gpu else _ON_HOST,
                instance_key=_key(name, tensor.dtype, tensor.shape), merge_op="Add", final_op="Div",
                communication_hint="nccl" if on_gpu else "ring", ordering_token=[],
            )  # fmt: skip


def _buckets(tensors: Sequence[tf.Tensor]) -> Iterator[list[tf.Tensor]]:
    """Yields the tensors in groups of about `BUCKET_BYTES`. A tensor of unknown shape is a group of its own."""
    bucket: list[tf.Tensor] = []
    held = 0
    for tensor in tensors:
        size = (tensor.shape.num_elements() or BUCKET_BYTES) * tensor.dtype.size
        if bucket and held + size > BUCKET_BYTES:
            yield bucket
            bucket, held = [], 0
        bucket.append(tensor)
        held += size
    if bucket:
        yield bucket


def _key(name: str, dtype: tf.DType, shape: Any) -> int:
    """The number by which all ranks know an exchange."""
    text = f"{name} {dtype.name} {list(shape)}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


def _words(message: bytes, length: int) -> np.ndarray:
    """A message as whole numbers of 8 bytes, at least one, and enough for `length` bytes: collectives take no single bytes."""
    whole = max(1, -(-length // _WORD)) * _WORD
    return np.frombuffer(message.ljust(whole, b"\0"), np.int64)
