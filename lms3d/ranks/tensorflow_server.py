"""TensorFlow's server of one rank. TensorFlow offers it to `MultiWorkerMirroredStrategy` alone, which would also show each rank the
devices of all others, so that an op could be placed on another rank's. Checked with TensorFlow 2.21."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context as eager_context

from lms3d.errors import InputError

JOB = "worker"
LEADER = f"/job:{JOB}/replica:0/task:0"  # decides who belongs to a group
_SPARED = ("no_grpc_proxy", "no_proxy")  # gRPC reads the first alone if it is set


def start(addresses: Sequence[str], rank: int) -> None:
    """Starts this rank's server, and lets collectives go through the servers of all ranks. Call it once, when TensorFlow has its
    devices, and before anything lies on them.

    addresses: "host:port" of each rank's server. InputError if the own port is taken.
    """
    _spare_the_proxy(addresses)
    context = eager_context.context()
    config = copy.deepcopy(context.config)
    config.experimental.collective_group_leader = LEADER
    config.device_filters[:] = [f"/job:{JOB}/task:{rank}"]
    server = tensorflow_server_pb2.ServerDef(
        cluster=tf.train.ClusterSpec({JOB: list(addresses)}).as_cluster_def(), default_session_config=config, job_name=JOB,
        task_index=rank, protocol="grpc", port=int(addresses[rank].rpartition(":")[2]),
    )  # fmt: skip
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of tensors that exist already: there are none
    try:
        context.enable_collective_ops(server)
    except tf.errors.OpError as error:
        raise InputError(
            f"--ranks tensorflow: TensorFlow's server cannot start at {addresses[rank]} ({error.message}); start again"
        ) from None
    finally:
        log.setLevel(level)


def _spare_the_proxy(addresses: Sequence[str]) -> None:
    """Tells gRPC to reach these addresses itself: if `http_proxy` is set it would ask the proxy for them, and wait for ever."""
    known = next((os.environ[name] for name in _SPARED if os.environ.get(name)), "")
    hosts = ",".join(dict.fromkeys(address.rpartition(":")[0] for address in addresses))
    os.environ[_SPARED[0]] = f"{known},{hosts}".lstrip(",")
