"""Ranks never execute values from horovodrun's store, to which anybody who reaches its port can write."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lms3d.errors import InputError
from lms3d.ranks import messages, store
from lms3d.ranks.world import World
from tests.lms3d.ranks.started import LAUNCHER

with_horovod = pytest.mark.skipif(not LAUNCHER.exists(), reason="Horovod is not installed: make horovod")
Serve = Callable[[Callable[[BaseHTTPRequestHandler], None]], tuple[str, int]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a store that answers each GET by a function. Returns its address."""
    servers: list[socketserver.TCPServer] = []

    def start(answer: Callable[[BaseHTTPRequestHandler], None]) -> tuple[str, int]:
        class Handler(BaseHTTPRequestHandler):
            do_GET = do_PUT = answer

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return "127.0.0.1", server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def content(*answers: bytes | None) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answers one request after the other; None is "not there yet". The last one stays."""
    left = list(answers)

    def answer(request: BaseHTTPRequestHandler) -> None:
        body = left.pop(0) if len(left) > 1 else left[0]
        request.send_response(404 if body is None else 200)
        request.send_header("Content-Length", str(len(body or b"")))
        request.end_headers()
        request.wfile.write(body or b"")

    return answer


class Payload:
    """Runs a command in whoever unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.path}'",)


@with_horovod
def test_code_in_the_store_is_refused_and_not_run(serve, monkeypatch, tmp_path):
    address, port = serve(content(pickle.dumps((Payload(tmp_path / "was here"), None))))
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", address)
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(port))
    with pytest.raises(InputError, match=r"rank 0 .* somebody else"):
        World(rank=1, size=2, link=link()).from_chief(lambda: None)
    assert not (tmp_path / "was here").exists()


def link() -> Any:
    """The link of rank 1 of a job of horovodrun."""
    from lms3d.ranks import horovod

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(horovod.hvd, "init", lambda: None)
        patch.setattr(horovod.hvd, "rank", lambda: 1)
        patch.setattr(horovod.hvd, "size", lambda: 2)
        patch.setenv("HOROVOD_CONTROLLER", "gloo")
        return horovod.Horovod()


@with_horovod
def test_what_only_one_rank_has_read_ends_the_job(serve, monkeypatch):
    """Plain values can be forged, too. As soon as the ranks can communicate without the store, they compare what they have read."""
    address, port = serve(content(messages.packed((7, None))))
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", address)
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(port))
    world = World(rank=1, size=2, link=link())
    assert world.from_chief(lambda: None) == 7

    def rank_0_wrote(message: bytes) -> None:
        digest = hashlib.sha256(hashlib.sha256(message).digest()).digest()
        monkeypatch.setattr(world.link, "gather_bytes", lambda own: [digest, own])

    rank_0_wrote(messages.packed((7, None)))
    world.devices_exist()
    rank_0_wrote(messages.packed((8, None)))
    with pytest.raises(InputError, match="have not all read what rank 0 wrote"):
        world.devices_exist()


def test_a_value_is_waited_for(serve):
    there = store.Store(*serve(content(None, None, messages.packed(7))))
    assert messages.unpacked(there.get("0")) == 7


def test_a_store_that_falls_silent_is_given_up(serve):
    silent = threading.Event()
    there = store.Store(*serve(lambda request: silent.wait(20)), request_seconds=0.2, patience_seconds=0.5)
    begin = time.monotonic()
    with pytest.raises(InputError, match=r"store .* at 127\.0\.0\.1:\d+ does not answer"):
        there.get("0")
    assert time.monotonic() - begin < 10
    with pytest.raises(InputError, match="does not answer"):
        there.put("0", b"x")
    silent.set()


def test_a_store_that_trickles_is_given_up(serve):
    def trickle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(800):
                request.wfile.write(b"x")
                time.sleep(0.05)

    there = store.Store(*serve(trickle), request_seconds=0.3, patience_seconds=0.5)
    begin = time.monotonic()
    with pytest.raises(InputError, match="does not answer"):
        there.get("0")
    assert time.monotonic() - begin < 20  # to its end a trickle takes 40 s


def test_a_store_without_end_is_refused(serve):
    there = store.Store(*serve(content(b"x" * 2000)), most_bytes=1000)
    with pytest.raises(InputError, match="more than 1000 bytes"):
        there.get("0")


def test_a_store_that_is_gone_is_given_up():
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        address = server.server_address
    with pytest.raises(InputError, match="does not answer"):
        store.Store(address[0], address[1], patience_seconds=0.3).get("0")
