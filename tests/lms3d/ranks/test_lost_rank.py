"""The recognition of a lost rank, the limits of Horovod's waits, and the messages between the watchdogs of two ranks."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from lms3d import errors
from lms3d.errors import InputError
from lms3d.ranks import heartbeat, lost_rank
from lms3d.ranks.heartbeat import Loss, Watchdog
from lms3d.ranks.lateness import Late
from lms3d.ranks.world import World


class HorovodInternalError(RuntimeError):
    """Horovod's class of this name."""


class OpError(Exception):
    """TensorFlow's class of this name."""


def tf_error(message: str, name: str = "UnavailableError") -> OpError:
    return type(name, (OpError,), {})(message)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (HorovodInternalError("anything"), True),
        (RuntimeError("Horovod has been shut down. This was caused by an exception on one of the ranks"), True),
        (RuntimeError("[pair.cc:589] Read error [10.0.0.2]:17807: Connection reset by peer"), True),
        (RuntimeError("Timed out waiting 35000ms for recv operation to complete"), True),
        (tf_error("Collective ops is aborted by: Socket closed"), True),
        (tf_error("Collective ops is aborted by: OOM", "ResourceExhaustedError"), False),
        (RuntimeError("Mismatched allreduce tensor shapes"), False),
        (ValueError("Connection reset by peer"), False),
        (None, False),
    ],
)
def test_what_a_loss_looks_like(error, expected):
    assert lost_rank.is_loss(error) == expected


def test_a_loss_is_found_behind_other_errors():
    def stumble() -> None:
        try:
            raise HorovodInternalError("gone")
        except RuntimeError as cause:
            raise KeyError("x") from cause

    with pytest.raises(KeyError) as caught:
        stumble()
    assert lost_rank.is_loss(caught.value)


def test_waits_are_bounded_and_the_user_has_the_last_word():
    alone: dict[str, str] = {}
    lost_rank.bound_waits(alone)
    assert (
        int(alone["HOROVOD_GLOO_TIMEOUT_SECONDS"]) <= 45
    )  # and the launcher takes 10 s to end the others: 60 s in all
    assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" not in alone  # it would end jobs whose ranks plan for long
    given = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "7"}
    lost_rank.bound_waits(given)
    assert given["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "7"
    elastic = {"HOROVOD_ELASTIC": "1"}
    lost_rank.bound_waits(elastic)
    assert int(elastic["HOROVOD_GLOO_TIMEOUT_SECONDS"]) > int(alone["HOROVOD_GLOO_TIMEOUT_SECONDS"])


# -- two watchdogs in one process


class Rank(World):
    """A world whose messages from rank 0 go through a queue of this process."""

    message: list = []  # noqa: RUF012

    def from_chief(self, make):
        if self.is_chief:
            self.message.append(make())
        return self.message[-1]


@pytest.fixture
def pair(monkeypatch):
    """The watchdogs of ranks 0 and 1, and the losses that they have noticed."""
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(heartbeat, "_leave_now", lambda code: left.append(code))
    found: dict[int, Loss] = {}
    left: list[int] = []
    dogs = [Watchdog(Rank(rank=rank, size=2), lambda loss, rank=rank: found.update({rank: loss}), 1) for rank in (0, 1)]
    yield dogs, found, left
    for dog in dogs:
        dog.close("bye")


def test_nothing_is_lost_while_both_are_there(pair, monkeypatch):
    dogs, found, _ = pair
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.3)
    assert dogs[0].wait_for_loss(1.0) is None
    assert found == {}


def test_who_says_goodbye_is_not_lost(pair):
    dogs, found, _ = pair
    dogs[1].close("bye")
    assert dogs[0].wait_for_loss(0.5) is None
    assert found == {}


@pytest.mark.parametrize("dead", [0, 1])
def test_a_broken_connection_is_a_loss_and_a_busy_process_ends(pair, dead):
    dogs, found, left = pair
    threading.Event().wait(0.2)  # they have met
    for peer in list(dogs[dead]._peers.values()):
        peer.socket.shutdown(socket.SHUT_RDWR)  # what the kernel does when a process dies
    other = 1 - dead
    assert dogs[other].wait_for_loss(2) == Loss(dead, "it ended without a word")
    assert found[other].rank == dead
    threading.Event().wait(0.6)
    assert 1 in left  # nobody closed the watchdog: the main thread is busy


def test_who_gave_up_waiting_for_the_answer_is_not_a_rank_that_died(pair):
    """The rank has connected by another address meanwhile."""
    dogs, found, _ = pair
    listener = next(key.fileobj for key in dogs[0]._selector.get_map().values() if key.data is None)
    hasty = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
    hasty.sendall(f"{dogs[0]._token} 1\n".encode())
    hasty.close()
    assert dogs[0].wait_for_loss(0.5) is None
    assert found == {}


@pytest.mark.parametrize("greeting", ["é 1\n".encode(), b"\xff\xfe 1\n", b"\n", b"GET / HTTP/1.1\r\n\r\n", bytes(200)])
def test_a_stranger_at_the_port_stops_no_heartbeat(pair, greeting):
    dogs, found, _ = pair
    listener = next(key.fileobj for key in dogs[0]._selector.get_map().values() if key.data is None)
    with socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as stranger:
        stranger.sendall(greeting)
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b""  # it was heard, and sent away
    dogs[0]._thread.join(0.3)  # it would end now
    assert_beats(dogs[1])
    assert found == {}


def assert_beats(dog):
    """Rank 0 still tells this rank that all is well."""
    (peer,) = dog._peers.values()
    now, until = peer._received_at, time.monotonic() + 10
    while peer._received_at == now and time.monotonic() < until:
        time.sleep(0.01)
    assert peer._received_at > now


def test_a_message_that_cannot_be_written_does_not_keep_the_process(pair, monkeypatch):
    dogs, _, _ = pair
    monkeypatch.setattr(heartbeat, "FLUSH_SECONDS", 0.1)
    stuck = threading.Event()
    monkeypatch.setattr(dogs[0], "_on_loss", lambda loss: stuck.wait(30))
    assert_beats(dogs[1])  # they have met
    for peer in list(dogs[1]._peers.values()):
        peer.socket.shutdown(socket.SHUT_RDWR)
    dogs[0]._thread.join(10)
    ended = not dogs[0]._thread.is_alive()  # by `_leave_now`
    stuck.set()
    assert ended


def test_nor_does_it_silence_rank_0(pair, monkeypatch):
    dogs, found, _ = pair
    monkeypatch.setattr(heartbeat, "FLUSH_SECONDS", 0.05)
    stuck, told = threading.Event(), threading.Event()
    monkeypatch.setattr(dogs[0]._lateness, "late", lambda now: None if told.is_set() else Late(1, 7, 130.0, 1.0))
    monkeypatch.setattr(dogs[0], "_on_late", lambda late: told.set() or stuck.wait(30))
    assert told.wait(10)
    time.sleep(0.2)  # whatever was on its way has come
    try:
        assert_beats(dogs[1])
    finally:
        stuck.set()
    assert found == {}


def test_a_rank_that_has_told_its_error_needs_no_second_line(pair):
    dogs, _, _ = pair
    dogs[1].close("failed")
    loss = dogs[0].wait_for_loss(2)
    assert loss is not None
    assert loss.reported


def test_one_rank_tells(capsys):
    for rank in (0, 1, 2):
        lost_rank._report(World(rank=rank, size=3), Loss(2, "it ended without a word"))
        lost_rank._report(World(rank=rank, size=3), Loss(1, "it ended with an error", reported=True))
    first = capsys.readouterr().err
    assert first.count("\n") == 1
    assert "rank 2 of 3 is lost" in first
    assert "--resume" in first
    for rank in (1, 2):
        lost_rank._report(World(rank=rank, size=3), Loss(0, "it ended without a word"))
    assert capsys.readouterr().err.count("\n") == 1


def test_alone_there_is_nothing_to_watch():
    with lost_rank.watched(World()):
        assert "watchdog" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(("of_all", "said", "bounded"), [(False, "lms3d: error: no space\n", True), (True, "", False)])
def test_an_error_of_this_rank_alone_is_told_before_the_others_hear_of_it(monkeypatch, capsys, of_all, said, bounded):
    told, alarms, dumps = [], [], []
    peers = SimpleNamespace(close=lambda farewell: told.append((farewell, capsys.readouterr().err)))
    monkeypatch.setattr(lost_rank, "Watchdog", lambda *_, **__: peers)
    monkeypatch.setattr(lost_rank.signal, "alarm", alarms.append)
    monkeypatch.setattr(lost_rank.faulthandler, "dump_traceback_later", lambda *_, **__: dumps.append(1))
    error = InputError("no space")
    with pytest.raises(InputError), lost_rank.watched(World(rank=1, size=2)):
        raise errors.of_all_ranks(error) if of_all else error
    assert told == [("failed", said)]
    assert bool(alarms) == bool(dumps) == bounded


@pytest.mark.parametrize(
    "hanging", ["time.sleep(60)", "ctypes.PyDLL(None).sleep(60)"], ids=["waits", "holds Python's lock"]
)
def test_a_process_that_cannot_close_ends_with_code_1(hanging):
    code = (
        "import ctypes, time; from lms3d.ranks import lost_rank; lost_rank.LAST_SECONDS = 1; lost_rank._bound_closing();"
        + hanging
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


STUCK = """
import os, sys
from lms3d.ranks import heartbeat
heartbeat.FLUSH_SECONDS = 0.5
os.set_blocking(1, False)
try:
    while True:
        os.write(1, bytes(4096))
except BlockingIOError:
    os.set_blocking(1, True)
print("more")  # stays in Python's buffer
heartbeat._leave_now(7)
"""


def test_a_terminal_that_takes_no_more_holds_nobody_up():
    """The reader of a pipe has stopped, and the pipe is full."""
    reader, writer = os.pipe()
    try:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=writer, env=environ)
        assert process.wait(50) == 7
    finally:
        process.kill()
        os.close(reader)
        os.close(writer)
