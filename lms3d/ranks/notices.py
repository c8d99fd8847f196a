"""Receives horovodrun's notice to an elastic job that the hosts have changed, without executing what arrives.

Each rank has a service for these notices. Its key lies in the store of horovodrun, where anybody can read it, and Horovod 0.28.1
unpickles every message that is signed with the key. This service knows two messages, and takes any other for the second:

    PingRequest            is this the service?
    HostsUpdatedRequest    there are other hosts
"""

from __future__ import annotations

import struct
from typing import Any

from horovod.common.elastic import notification_manager
from horovod.runner.common.util import network, secret
from horovod.runner.elastic import worker

MOST_BYTES = 1 << 16
"""The most bytes of one message. Horovod's messages have some hundred."""

_NAME = worker.WorkerNotificationService.NAME  # the launcher asks for it


def listen(listener: Any) -> None:
    """Makes a thread call `listener.on_hosts_updated(timestamp, result)` when the hosts may have changed. Ignore both arguments."""
    worker.WorkerNotificationService = Service
    notification_manager.init()
    notification_manager.register_listener(listener)


def stop(listener: Any) -> None:
    """Undoes `listen`."""
    notification_manager.remove_listener(listener)


class Service(network.BasicService):
    """Replaces Horovod's `WorkerNotificationService`. Nobody else knows the key before the constructor returns."""

    def __init__(self, key: bytes, nic: str | None, manager: Any) -> None:
        super().__init__(_NAME, key, nic)
        self._wire, self._manager = _Wire(key), manager

    def _handle(self, request: Any, client_address: Any) -> Any:
        if isinstance(request, worker.HostsUpdatedRequest):
            self._manager.handle_hosts_updated(request.timestamp, request.res)
            return network.AckResponse()
        return super()._handle(request, client_address)


class _Wire(network.Wire):
    """Reads a digest, a length and a message, and unpickles none of it."""

    def read(self, rfile: Any) -> Any:
        """The request that a message stands for. EOFError, which ends the connection silently, if nobody in this job has signed the
        message."""
        head = rfile.read(secret.DIGEST_LENGTH + 4)
        if len(head) < secret.DIGEST_LENGTH + 4:
            raise EOFError
        (length,) = struct.unpack_from("i", head, secret.DIGEST_LENGTH)
        if not 0 <= length <= MOST_BYTES:
            raise EOFError
        message = rfile.read(length)
        if not secret.check_digest(self._key, message, head[: secret.DIGEST_LENGTH]):
            raise EOFError
        return network.PingRequest() if b"PingRequest" in message else worker.HostsUpdatedRequest(0)
