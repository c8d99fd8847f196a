"""One training per run folder."""

import errno
import fcntl
import os
import subprocess
import sys
import threading

import pytest

from lms3d.runlock import LOCK, RunLock

_HOLD = """
import sys, time
from pathlib import Path
from lms3d.runlock import RunLock
lock = RunLock()
print(lock.take(Path(sys.argv[1])), flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock of `tmp_path`."""
    process = subprocess.Popen([sys.executable, "-c", _HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.communicate(timeout=30)


def test_a_killed_process_holds_nothing(other, tmp_path):
    """A job that is queued again starts at once, and finds what the killed one left."""
    lock = RunLock()
    assert not lock.take(tmp_path)
    assert f"process {other.pid} on " in RunLock.holder(tmp_path)
    other.kill()
    other.wait(30)
    assert (tmp_path / LOCK).exists()
    assert lock.take(tmp_path)
    assert f"process {os.getpid()} on " in RunLock.holder(tmp_path)
    lock.release()
    assert not list(tmp_path.iterdir())  # nothing that could be taken for a result


def test_whoever_waits_gets_it_when_it_is_free(tmp_path):
    first, second = RunLock(), RunLock()
    assert first.take(tmp_path)
    assert first.take(tmp_path)  # again: it has it
    assert not second.take(tmp_path, seconds=0.1)
    release = threading.Timer(0.2, first.release)
    release.start()
    assert second.take(tmp_path, seconds=30)
    release.join()
    assert not first.take(tmp_path)
    second.release()
    second.release()


def test_another_folder_in_place_of_the_first(tmp_path):
    lock = RunLock()
    for name in "ab":
        (tmp_path / name).mkdir()
    assert lock.take(tmp_path / "a")
    assert lock.take(tmp_path / "b")
    assert RunLock().take(tmp_path / "a")


def test_a_lock_of_a_file_that_is_gone_is_none(tmp_path, monkeypatch):
    """Its holder ended between our opening of the file and our locking of it; a third may have made a new one."""
    first, second, third, flock = RunLock(), RunLock(), RunLock(), fcntl.flock
    assert first.take(tmp_path)

    def late(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        first.release()
        assert third.take(tmp_path)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert not second.take(tmp_path)


def test_file_systems_without_locks_are_told_of(tmp_path, monkeypatch, capsys):
    def flock(file, how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with RunLock() as lock:
        assert lock.take(tmp_path)
        assert not lock.locked
        (line,) = capsys.readouterr().out.splitlines()
        assert "cannot lock" in line
        assert "Function not implemented" in line
