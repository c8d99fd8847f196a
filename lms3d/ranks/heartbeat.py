"""Ends this process when another rank is gone. It notices at once that a rank has died, and within `SILENT_SECONDS` that a rank is
stopped.

A loss shows only at the next exchange, and the step before that may take minutes. So a thread of each rank keeps a TCP
connection to rank 0. Both ends send a line over it each second:

    beat N                  all is well; this rank has begun N exchanges with the others (see `lateness`)
    bye                     this rank leaves regularly, or with an error that all ranks share
    failed                  this rank leaves with an error of its own, which it has reported
    lost RANK REPORTED WHY  from rank 0 to all: another rank is gone; REPORTED is 1 if that rank has reported its error, else 0

The kernel closes the connections of a process that dies. A process that is stopped, or whose machine is gone, falls silent. Long
steps, planning and reading data do not silence a rank, since a thread of its own sends the beats.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from lms3d.ranks.lateness import Late, Lateness
from lms3d.ranks.world import World

BEAT_SECONDS = 1.0
SILENT_SECONDS = 35.0
CONNECT_SECONDS = 5.0
GRACE_SECONDS = 2.0  # for the main thread to end regularly; launchers kill the other ranks after 5 s
FLUSH_SECONDS = 2.0
GRACE_AFTER_ERROR_SECONDS = 30.0  # all ranks may be ending with the same error, and rank 0 saving


@dataclass(frozen=True)
class Loss:
    """A rank that is gone."""

    rank: int
    reason: str
    reported: bool = False
    """Whether the rank has reported its error itself."""


class Watchdog:
    """The heartbeat thread of one rank. `close` it before the process leaves.

    on_loss: called at once, from a thread. begun: returns the number of exchanges that this rank has begun. on_late: called from a
    thread of rank 0 when a rank keeps the others waiting; the job continues.

    If the main thread does not close it soon after a loss, it ends the process with `exit_code`. Only Horovod's own, slower checks
    watch a rank that cannot be reached over TCP.
    """

    def __init__(
        self,
        world: World,
        on_loss: Callable[[Loss], None],
        exit_code: int,
        *,
        begun: Callable[[], int] = lambda: 0,
        on_late: Callable[[Late], None] = lambda late: None,
    ) -> None:
        self.world, self._on_loss, self._exit_code = world, on_loss, exit_code
        self._begun, self._on_late, self._lateness = begun, on_late, Lateness()
        self.loss: Loss | None = None
        self._lost, self._ending = threading.Event(), threading.Event()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        self._guard = threading.Lock()
        self._token = ""
        self._connect()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watchdog")
        self._thread.start()

    def wait_for_loss(self, seconds: float) -> Loss | None:
        """The loss known after at most `seconds`; else that of the rank that has been silent longest; None if all ranks answer."""
        self._lost.wait(seconds)
        silent = [peer for peer in list(self._peers.values()) if peer.silent_seconds > SILENT_SECONDS / 2]
        if self.loss is None and silent:
            quietest = max(silent, key=lambda peer: peer.silent_seconds)
            return Loss(quietest.rank, f"it has not answered for {quietest.silent_seconds:.0f} s")
        return self.loss

    def close(self, farewell: str) -> None:
        """Says farewell, "bye" or "failed", and closes the connections. Rank 0 passes on a loss first."""
        self._ending.set()
        self._thread.join(2 * BEAT_SECONDS)
        if self.loss is None:
            self._send(farewell)
        for peer in self._peers.values():
            peer.socket.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        listener = socket.create_server(("", 0), backlog=self.world.size) if self.world.is_chief else None
        self._token, port, addresses = self.world.from_chief(
            lambda: (secrets.token_hex(16), listener.getsockname()[1] if listener else 0, _addresses())
        )
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, None)
        elif connection := _first_that_answers(addresses, port, f"{self._token} {self.world.rank}\n".encode()):
            self._add(0, connection)

    def _add(self, rank: int, connection: socket.socket) -> None:
        connection.settimeout(BEAT_SECONDS)  # a peer that no longer reads must not hold up the others
        self._peers[rank] = peer = _Peer(rank, connection)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _accept(self, listener: socket.socket) -> None:
        """Adds a rank that greets and still waits for the answer. A rank that gave up has connected by another address
        meanwhile."""
        with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as undo:
            connection, _ = listener.accept()
            undo.callback(connection.close)
            connection.settimeout(BEAT_SECONDS)  # a mute stranger must not make all other ranks look silent
            token, rank = connection.recv(100).split()  # bytes, because `compare_digest` takes no text beyond ASCII
            if secrets.compare_digest(token, self._token.encode()):
                connection.sendall(b"beat\n")
                if connection.recv(5) == b"here\n":
                    self._add(int(rank), connection)
                    undo.pop_all()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set() and self.loss is None:
            for key, _ in self._selector.select(BEAT_SECONDS):
                if key.data is None:
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                else:
                    self._receive(key.data)
            self._send(f"beat {self._exchanges()}")
            self._report_late_rank()
            for peer in list(self._peers.values()):
                if peer.silent_seconds > SILENT_SECONDS:
                    self._lose(Loss(peer.rank, f"it has not answered for {peer.silent_seconds:.0f} s"))
        if self.loss is not None:
            self._send(f"lost {self.loss.rank} {int(self.loss.reported)} {self.loss.reason}")
            if not self._ending.wait(GRACE_AFTER_ERROR_SECONDS if self.loss.reported else GRACE_SECONDS):
                _leave_now(self._exit_code)

    def _exchanges(self) -> int:
        """The number of exchanges begun; 0 if it cannot be had. An error in a process that ends must not end this thread first."""
        with contextlib.suppress(Exception):
            return self._begun()
        return 0

    def _report_late_rank(self) -> None:
        if self.world.is_chief:
            self._lateness.note(0, self._exchanges(), time.monotonic())
            if (late := self._lateness.late(time.monotonic())) is not None:
                _bounded(lambda: self._on_late(late))

    def _receive(self, peer: _Peer) -> None:
        for line in peer.lines():
            word, *rest = line.split(" ", 3)
            if word == "beat" and len(rest) == 1 and rest[0].isdecimal():
                self._lateness.note(peer.rank, int(rest[0]), time.monotonic())
            elif word == "bye":
                self._forget(peer)
            elif word == "failed":
                self._lose(Loss(peer.rank, "it ended with an error", reported=True))
            elif word == "lost" and len(rest) == 3:
                self._lose(Loss(int(rest[0]), rest[2], reported=rest[1] == "1"))
        if peer.closed and self._peers.get(peer.rank) is peer:
            self._lose(Loss(peer.rank, "it ended without a word"))

    def _lose(self, loss: Loss) -> None:
        if self.loss is None:
            self.loss = loss
            _bounded(lambda: self._on_loss(loss))
            self._lost.set()

    def _forget(self, peer: _Peer) -> None:
        self._lateness.forget(peer.rank)
        self._selector.unregister(peer.socket)
        self._peers.pop(peer.rank, None)
        peer.socket.close()

    def _send(self, line: str) -> None:
        with self._guard:
            for peer in list(self._peers.values()):
                with contextlib.suppress(OSError):
                    peer.socket.sendall(f"{line}\n".encode())


class _Peer:
    """The other end of a connection: the bytes that have arrived, and when the last did."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank, self.socket, self.closed = rank, connection, False
        self._received_at, self._rest = time.monotonic(), b""

    @property
    def silent_seconds(self) -> float:
        return time.monotonic() - self._received_at

    def lines(self) -> Iterator[str]:
        """The complete lines that have arrived."""
        try:
            received = self.socket.recv(65536)
        except TimeoutError:
            return
        except OSError:
            received = b""
        self.closed = not received
        self._received_at = time.monotonic()
        *lines, self._rest = (self._rest + received).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)


def _addresses() -> list[str]:
    """The addresses of this machine. Addresses that other machines can reach come first."""
    entries = [entry for interface in psutil.net_if_addrs().values() for entry in interface]
    addresses = dict.fromkeys(entry.address for entry in entries if entry.family == socket.AF_INET)
    return sorted(addresses, key=lambda address: address.startswith("127."))


def _first_that_answers(addresses: list[str], port: int, greeting: bytes) -> socket.socket | None:
    """A connection to rank 0; None if no address answers. Other machines may share an address, but only rank 0 answers the
    greeting."""
    for address in addresses:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
            connection.sendall(greeting)
            if connection.recv(5) == b"beat\n":
                connection.sendall(b"here\n")
                return connection
            connection.close()
    return None


def _leave_now(code: int) -> None:
    """Ends the process without waiting for the present step or for another rank."""
    _bounded(_flush)
    os._exit(code)


def _bounded(write: Callable[[], None]) -> None:
    """Calls `write`, and waits for it at most `FLUSH_SECONDS`. A terminal that blocks must hold up neither the beats nor the
    end."""
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(FLUSH_SECONDS)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
