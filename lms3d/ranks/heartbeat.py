"""Notices at once that another rank has died, and within `SILENT_SECONDS` that one is stopped; then ends this process.

Horovod reports a loss only at the next reduction, and the step before that may take minutes. So a thread of each rank keeps a
TCP connection to rank 0, over which both ends send a line a second:

    beat N                  all is well; this rank has begun N exchanges with the others (see `lateness`)
    bye                     leaves regularly, or with an error that all ranks share
    failed                  leaves with an error of its own, which it has reported
    lost RANK REASON        rank 0 to all: another rank is gone

The kernel closes the connections of a process that dies. A process that is stopped, or whose machine is gone, falls silent;
long steps, planning and reading data do not silence a rank, since beats come from their own thread.
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
GRACE_SECONDS = 2.0  # for the main thread to end as it should; launchers kill the other ranks after 5 s
FLUSH_SECONDS = 2.0
GRACE_AFTER_ERROR_SECONDS = 30.0  # all ranks may be ending with the same error, and rank 0 saving


@dataclass(frozen=True)
class Loss:
    """A rank that is gone."""

    rank: int
    reason: str
    told: bool = False
    """Whether it has reported the error itself."""


class Watchdog:
    """The thread of one rank; `close` it before the process leaves.

    on_loss: called at once, from a thread. begun: how many exchanges this rank has begun. on_late: called from a thread of
    rank 0 when a rank keeps the others waiting; the job goes on.

    If the main thread does not close it soon after a loss, it ends the process with `exit_code`. Ranks that cannot be
    reached over TCP are left to Horovod's own, slower checks.
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
        self._found, self._ending = threading.Event(), threading.Event()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        self._guard = threading.Lock()
        self._token = ""
        self._connect()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watchdog")
        self._thread.start()

    def wait_for_loss(self, seconds: float) -> Loss | None:
        """Who is known to be gone after at most `seconds`; else the rank that has been silent longest, if any has been."""
        self._found.wait(seconds)
        silent = [peer for peer in list(self._peers.values()) if peer.silent_seconds > SILENT_SECONDS / 2]
        if self.loss is None and silent:
            most = max(silent, key=lambda peer: peer.silent_seconds)
            return Loss(most.rank, f"it has not answered for {most.silent_seconds:.0f} s")
        return self.loss

    def close(self, farewell: str) -> None:
        """Leaves the others. farewell: "bye" or "failed"; rank 0 passes on a loss before it goes."""
        self._ending.set()
        self._thread.join(2 * BEAT_SECONDS)
        if self.loss is None:
            self._tell(farewell)
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
        elif found := _first_that_answers(addresses, port, f"{self._token} {self.world.rank}\n".encode()):
            self._add(0, found)

    def _add(self, rank: int, connection: socket.socket) -> None:
        connection.settimeout(BEAT_SECONDS)  # a peer that no longer reads must not hold up the others
        self._peers[rank] = peer = _Peer(rank, connection)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _accept(self, listener: socket.socket) -> None:
        """A rank that greets, and still waits for the answer: one that gave up has meanwhile come by another address."""
        with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as undo:
            connection, _ = listener.accept()
            undo.callback(connection.close)
            connection.settimeout(BEAT_SECONDS)  # or a mute one would make all others look silent
            token, rank = connection.recv(100).split()  # bytes: of text, `compare_digest` takes ASCII alone
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
                    self._hear(key.data)
            self._tell(f"beat {self._exchanges()}")
            self._look_for_late_ones()
            for peer in list(self._peers.values()):
                if peer.silent_seconds > SILENT_SECONDS:
                    self._lose(Loss(peer.rank, f"it has not answered for {peer.silent_seconds:.0f} s"))
        if self.loss is not None:
            self._tell(f"lost {self.loss.rank} {int(self.loss.told)} {self.loss.reason}")
            if not self._ending.wait(GRACE_AFTER_ERROR_SECONDS if self.loss.told else GRACE_SECONDS):
                _leave_now(self._exit_code)

    def _exchanges(self) -> int:
        """None of the errors of a process that ends may end this thread before it."""
        with contextlib.suppress(Exception):
            return self._begun()
        return 0

    def _look_for_late_ones(self) -> None:
        if self.world.is_chief:
            self._lateness.note(0, self._exchanges(), time.monotonic())
            if (late := self._lateness.late(time.monotonic())) is not None:
                _bounded(lambda: self._on_late(late))

    def _hear(self, peer: _Peer) -> None:
        for line in peer.lines():
            word, *rest = line.split(" ", 3)
            if word == "beat" and len(rest) == 1 and rest[0].isdecimal():
                self._lateness.note(peer.rank, int(rest[0]), time.monotonic())
            elif word == "bye":
                self._forget(peer)
            elif word == "failed":
                self._lose(Loss(peer.rank, "it ended with an error", told=True))
            elif word == "lost" and len(rest) == 3:
                self._lose(Loss(int(rest[0]), rest[2], told=rest[1] == "1"))
        if peer.closed and self._peers.get(peer.rank) is peer:
            self._lose(Loss(peer.rank, "it ended without a word"))

    def _lose(self, loss: Loss) -> None:
        if self.loss is None:
            self.loss = loss
            _bounded(lambda: self._on_loss(loss))
            self._found.set()

    def _forget(self, peer: _Peer) -> None:
        self._lateness.forget(peer.rank)
        self._selector.unregister(peer.socket)
        self._peers.pop(peer.rank, None)
        peer.socket.close()

    def _tell(self, line: str) -> None:
        with self._guard:
            for peer in list(self._peers.values()):
                with contextlib.suppress(OSError):
                    peer.socket.sendall(f"{line}\n".encode())


class _Peer:
    """The other end of a connection: what has arrived, and when."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank, self.socket, self.closed = rank, connection, False
        self._heard, self._rest = time.monotonic(), b""

    @property
    def silent_seconds(self) -> float:
        return time.monotonic() - self._heard

    def lines(self) -> Iterator[str]:
        """The complete lines that have arrived."""
        try:
            received = self.socket.recv(65536)
        except TimeoutError:
            return
        except OSError:
            received = b""
        self.closed = not received
        self._heard = time.monotonic()
        *lines, self._rest = (self._rest + received).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)


def _addresses() -> list[str]:
    """The addresses of this machine, the most useful to other machines first."""
    entries = [entry for interface in psutil.net_if_addrs().values() for entry in interface]
    found = dict.fromkeys(entry.address for entry in entries if entry.family == socket.AF_INET)
    return sorted(found, key=lambda address: address.startswith("127."))


def _first_that_answers(addresses: list[str], port: int, greeting: bytes) -> socket.socket | None:
    """A connection to rank 0. Other machines may share some of its addresses; only rank 0 answers the greeting."""
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
    """Ends the process without waiting for a step under way, or for another rank."""
    _bounded(_flush)
    os._exit(code)


def _bounded(speak: Callable[[], None]) -> None:
    """A terminal that takes no more must hold up neither the beats nor the end: then `speak` goes on by itself."""
    speaking = threading.Thread(target=speak, daemon=True)
    speaking.start()
    speaking.join(FLUSH_SECONDS)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
