"""One training per run folder."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lms3d.errors import InputError
from lms3d.training import run_lock
from lms3d.training.run_lock import LOCK, RunLock

_HOLD = """
import sys, time
from pathlib import Path
from lms3d.training.run_lock import RunLock
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


def failing(real, *numbers):
    """A stand-in for a system call that fails with these error numbers, one after the other, before it works again."""
    left = list(numbers)

    def call(*arguments):
        if left:
            raise OSError(number := left.pop(0), os.strerror(number))
        return real(*arguments)

    return call


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.EINVAL], ids=errno.errorcode.get)
def test_file_systems_without_locks_are_told_of(tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr(fcntl, "flock", failing(None, number))
    with RunLock() as lock:
        assert lock.take(tmp_path)
        assert not lock.locked
        (line,) = capsys.readouterr().out.splitlines()
        assert "cannot lock" in line
        assert os.strerror(number) in line


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["flock", "open"])
def test_a_lock_that_fails_lets_nobody_in(tmp_path, monkeypatch, number, call):
    """The file is another's: who removed it would let a third one in."""
    first, second = RunLock(), RunLock()
    assert first.take(tmp_path)
    with monkeypatch.context() as patch:
        module = fcntl if call == "flock" else os
        patch.setattr(module, call, failing(None, number))
        with pytest.raises(InputError, match=rf"{LOCK}: cannot lock it \({os.strerror(number)}\); .*another --output"):
            second.take(tmp_path)
    assert not second.locked
    assert not second.take(tmp_path)
    assert first.locked
    first.release()
    assert second.take(tmp_path)
    second.release()


@pytest.mark.parametrize("call", ["flock", "open"])
def test_a_file_that_the_server_has_lost_is_opened_again(tmp_path, monkeypatch, call):
    module = fcntl if call == "flock" else os
    monkeypatch.setattr(module, call, failing(getattr(module, call), errno.ESTALE, errno.ESTALE))
    with RunLock() as lock:
        assert lock.take(tmp_path)
        assert lock.locked


def test_one_that_stays_lost_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "_POLL_SECONDS", 0)
    monkeypatch.setattr(fcntl, "flock", failing(None, *[errno.ESTALE] * 99))
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InputError, match="Stale file handle"):
        RunLock().take(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == files


def test_what_another_user_left_is_locked_all_the_same(tmp_path, monkeypatch):
    (tmp_path / LOCK).write_text("process 1 of somebody\n")
    real = os.open

    def open_(path, flags, mode=0o777, **more):  # as for a file of mode 0644: root may write to any
        if Path(path).name == LOCK and flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", open_)
    with RunLock() as lock:
        assert lock.take(tmp_path)
        assert lock.locked
        assert not RunLock().take(tmp_path)
    assert not list(tmp_path.iterdir())


def test_one_that_may_not_even_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "open", failing(None, errno.EACCES, errno.EACCES))
    with pytest.raises(InputError, match=rf"{LOCK}: cannot lock it \(Permission denied\); .*delete it"):
        RunLock().take(tmp_path)


@pytest.mark.parametrize("call", ["write", "truncate"])
def test_a_full_disk_keeps_nobody_from_the_lock(tmp_path, monkeypatch, call):
    """Who has it is told where there is room to write it down."""
    monkeypatch.setattr(os, call, failing(None, errno.ENOSPC))
    with RunLock() as lock:
        assert lock.take(tmp_path)
        assert lock.locked


def test_a_link_is_not_followed(tmp_path):
    """Its target would be emptied."""
    (tmp_path / "mine").write_text("dear to me")
    (tmp_path / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="symbolic link"):
        RunLock().take(tmp_path)
    assert (tmp_path / "mine").read_text() == "dear to me"
