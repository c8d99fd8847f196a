"""The notices between launcher and ranks of an elastic job are never executed."""

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
    """The answer; nothing if the service closes the connection."""
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


# The launcher, as deploy/horovod/source.py patches it


def test_an_address_of_a_rank_runs_nothing(tmp_path):
    from horovod.runner.common.util import codec
    from horovod.runner.elastic.rendezvous import PUT_WORKER_ADDRESSES, create_rendezvous_handler
    from horovod.runner.http.http_client import put_data_into_kvstore
    from horovod.runner.http.http_server import RendezvousServer

    known = []
    driver = SimpleNamespace(register_worker_server=lambda *words: known.append(words))
    store = RendezvousServer()
    port = store.start(create_rendezvous_handler(driver))
    try:
        with pytest.raises((RuntimeError, ConnectionError)):  # the server hangs up
            put_data_into_kvstore("127.0.0.1", port, PUT_WORKER_ADDRESSES, "here:0", Bomb(tmp_path / "mark"))
        address = {"lo": [("127.0.0.1", 1)]}
        put_data_into_kvstore("127.0.0.1", port, PUT_WORKER_ADDRESSES, "here:0", (address, KEY))
    finally:
        store.stop()
    assert known == [("here", 0, address, KEY)]
    assert not (tmp_path / "mark").exists()
    with pytest.raises(pickle.UnpicklingError, match="not expected here"):
        codec.loads_plain(pickle.dumps(os.system))


def test_an_answer_runs_nothing(tmp_path):
    """A service of a stranger who has put his address and key into the launcher's store."""
    from horovod.runner.common.util import network
    from horovod.runner.elastic.worker import WorkerNotificationClient

    class Stranger(network.BasicService):
        def _handle(self, request, client_address):
            return Bomb(tmp_path / "mark")

    stranger = Stranger(WorkerNotificationClient.__name__, KEY, "lo")
    try:
        with pytest.raises(network.NoValidAddressesFound):
            WorkerNotificationClient(stranger.addresses(), KEY, verbose=0)
    finally:
        stranger.shutdown()
    assert not (tmp_path / "mark").exists()


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
