"""What reaches the service by which an elastic launcher tells of other hosts: nothing of it is ever run."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lms3d.ranks.started import LAUNCHER

pytestmark = pytest.mark.skipif(not LAUNCHER.exists(), reason="Horovod is not installed: make horovod")
KEY = b"known to everybody"


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch '{self.mark}'",)


@pytest.fixture
def told() -> threading.Event:
    return threading.Event()


@pytest.fixture
def service(told) -> Iterator:
    from lms3d.ranks import notices

    service = notices.Service(KEY, "lo", SimpleNamespace(handle_hosts_updated=lambda *_: told.set()))
    yield service
    service.shutdown()


def send(service, message: bytes, key: bytes = KEY, length: int | None = None) -> bytes:
    """What it answers; nothing where it hangs up."""
    from horovod.runner.common.util import secret

    head = secret.compute_digest(key, message) + struct.pack("i", len(message) if length is None else length)
    with socket.create_connection(("127.0.0.1", service.get_port()), timeout=30) as connection:
        try:
            connection.sendall(head + message)
            connection.shutdown(socket.SHUT_WR)
            return connection.makefile("rb").read()
        except ConnectionError:
            return b""


def test_a_signed_message_runs_nothing(service, told, tmp_path):
    assert send(service, pickle.dumps(Bomb(tmp_path / "mark")))
    assert told.wait(30)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("message", [
    {"key": b"another"}, {"length": 1 << 30}, {"length": -1}, {"length": 3},
], ids=str)  # fmt: skip
def test_what_nobody_signed_is_not_answered(service, told, message):
    assert send(service, b"hosts", **message) == b""
    assert not told.is_set()


def test_the_launcher_gets_through(service, told):
    from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient

    WorkerNotificationClient(service.addresses(), KEY, verbose=0).notify_hosts_updated(1, HostUpdateResult.added)
    assert told.wait(30)


def test_it_takes_the_place_of_horovods_own(monkeypatch):
    from horovod.runner.elastic import worker

    from lms3d.ranks import notices

    monkeypatch.setattr(worker, "WorkerNotificationService", worker.WorkerNotificationService)
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", raising=False)
    memory = object()
    notices.listen(memory)
    notices.stop(memory)
    service = worker.WorkerNotificationService(KEY, "lo", None)
    service.shutdown()
    assert isinstance(service, notices.Service)
