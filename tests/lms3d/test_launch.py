"""`lms3d.launch` with commands that are no training: places, messages, exit codes, signals. No TensorFlow here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from lms3d import launch
from lms3d.errors import InputError
from lms3d.ranks import meeting
from lms3d.ranks.store import Store
from lms3d.ranks.store_server import StoreServer

ROOT = Path(__file__).parents[2]
MEET = """
import os, sys
from lms3d.ranks import meeting
here = meeting.of_launcher()
lengths = [len(part) for part in here.gather(bytes(5))]
message = here.broadcast(b"x" * 300_000 if here.rank == 0 else b"")
here.close()
open(f"{sys.argv[1]}/{here.rank}", "w").write(f"{here.rank} {here.size} {lengths} {len(message)}")
"""


def started(*command: str, ranks: int = 2) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lms3d.launch", "-np", str(ranks), *command], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_ranks_meet_and_leave_together(tmp_path):
    assert launch.main(["-np", "3", sys.executable, "-c", MEET, str(tmp_path)]) == 0
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == [
        "0 3 [5, 5, 5] 300000", "1 3 [] 300000", "2 3 [] 300000",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ('[ "$LMS3D_RANK" = 0 ] || exit 3', 3), ('[ "$LMS3D_RANK" = 0 ] || kill -KILL $$', 137)],
)
def test_the_code_of_the_first_rank_that_fails(script, code):
    assert launch.main(["-np", "2", "bash", "-c", script]) == code


def test_the_others_are_ended_when_a_rank_has_failed_and_their_time_is_over(monkeypatch):
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.1)
    assert launch.main(["-np", "2", "bash", "-c", '[ "$LMS3D_RANK" = 0 ] && exit 2; exec sleep 1000']) == 2


def test_a_stopped_rank_is_not_waited_for_when_another_has_failed(monkeypatch):
    monkeypatch.setattr(launch, "GRACE_SECONDS", float("inf"))
    assert launch.main(["-np", "2", "bash", "-c", '[ "$LMS3D_RANK" = 0 ] && exit 2; kill -STOP $$']) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-np", "2"], "the command is missing"),
        (["-np", "0", "true"], "0 is too small"),
        (["-np", "2", "no-such-command"], "no-such-command: No such file or directory; expected a command"),
    ],
)
def test_what_cannot_be_started(arguments: Sequence[str], said: str, capsys):
    assert launch.main(arguments) == InputError.exit_code
    assert said in capsys.readouterr().err


def until_ready(folder: Path, ranks: int = 2) -> list[psutil.Process]:
    deadline = time.monotonic() + 60
    while len(files := list(folder.glob("pid*"))) < ranks or not all(file.read_text() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [psutil.Process(int(file.read_text())) for file in files]


READY = 'trap "exit 130" INT; trap "exit 0" TERM; echo $$ > $0/pid$LMS3D_RANK; while :; do sleep 0.1; done'


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_reaches_each_rank_and_the_launcher_waits(tmp_path, number, code):
    job = started("bash", "-c", READY, str(tmp_path))
    until_ready(tmp_path)
    job.send_signal(number)
    output, _ = job.communicate(timeout=60)
    assert (job.returncode, output) == (code, "")


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path):
    job = started("bash", "-c", READY, str(tmp_path))
    ranks = until_ready(tmp_path)
    job.kill()
    job.communicate(timeout=60)
    _, alive = psutil.wait_procs(ranks, timeout=20)
    assert alive == []


def test_the_store_answers_to_nobody_but_the_ranks():
    server = StoreServer()
    server.serve()
    try:
        address, scope = server.place.split("/")
        host, port = address.split(":")
        assert host == "127.0.0.1"
        own = Store(host, int(port), scope=scope)
        own.put("0", b"secret")
        assert own.get("0") == b"secret"
        for method, path in (("GET", "lms3d/0"), ("GET", "0"), ("GET", f"{scope[:-1]}/0"), ("PUT", "lms3d/0")):
            request = urllib.request.Request(
                f"http://{address}/{path}", data=b"" if method == "PUT" else None, method=method
            )
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(request, timeout=10)
        assert own.get("0") == b"secret"
    finally:
        server.close()


def test_a_path_without_a_slash_is_answered():
    server = StoreServer()
    server.serve()
    try:
        host, port = server.place.split("/")[0].split(":")
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            stranger.sendall(b"GET 0 HTTP/1.0\r\n\r\n")
            assert stranger.recv(100).split()[1:2] == [b"404"]
    finally:
        server.close()


def test_without_a_launcher_s_store_ranks_meet_through_mpi(monkeypatch):
    for name in (meeting.STORE, "HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(meeting, "_MPI_LIBRARIES", ("libno-such-mpi.so",))
    with pytest.raises(InputError, match=r"libno-such-mpi\.so loads.* start with python -m lms3d\.launch"):
        meeting.of_launcher()
