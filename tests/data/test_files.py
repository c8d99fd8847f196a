"""Atomic writes, locks and folders that cannot be used."""

import errno
import fcntl
import multiprocessing
import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from lms3d.data import files, pseudonyms
from lms3d.data.errors import DataError
from tests.power_cut import PowerCut


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "value.json"
    files.write_json(path, [1])
    with pytest.raises(TypeError):
        files.write_json(path, object())
    with pytest.raises(ZeroDivisionError), files.new_file(path) as temporary:
        temporary.write_text(f"half {1 / 0}")
    assert files.read_json(path, advice="") == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_appears_whole_and_replaces_a_damaged_one(tmp_path):
    target = tmp_path / "entry"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(RuntimeError), files.new_directory(target):
        raise RuntimeError
    assert [path.name for path in target.iterdir()] == ["old"]
    with files.new_directory(target) as temporary:
        (temporary / "new").touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_power_cut_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "disk" / "index.json"
    path.parent.mkdir()
    files.write_json(path, "old")
    disk = PowerCut(path.parent, monkeypatch)
    files.write_json(path, "new")
    found = {(root / "index.json").read_text() for root in disk.each(tmp_path / "every")}
    assert found == {'"old"\n', '"new"\n'}
    assert {(root / "index.json").read_text() for root in disk.now(tmp_path / "now")} == {'"new"\n'}


@pytest.mark.parametrize("damaged", [True, False])
def test_a_power_cut_leaves_a_whole_directory_or_none(tmp_path, monkeypatch, damaged):
    target = tmp_path / "disk" / "entry"
    (target if damaged else target.parent).mkdir(parents=True)
    disk = PowerCut(target.parent, monkeypatch)
    with files.new_directory(target) as temporary:
        (temporary / "a.npy").write_bytes(b"cube")
        (temporary / "below").mkdir()
        (temporary / "below" / "b.npy").write_bytes(b"truth")
    old: set[tuple[bytes, ...] | None] = {(), None} if damaged else {None}
    assert {content(root / "entry") for root in disk.each(tmp_path / "x")} == {*old, (b"cube", b"truth")}


def content(folder: Path) -> tuple[bytes, ...] | None:
    return tuple(sorted(path.read_bytes() for path in folder.rglob("*.npy"))) if folder.exists() else None


def test_a_file_that_can_be_made_again_may_be_missing_but_is_never_half(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    disk = PowerCut(tmp_path / "disk", monkeypatch)
    with files.new_file(tmp_path / "disk" / "a.png", lasting=False) as temporary:
        temporary.write_bytes(b"pixels")
    found = {(root / "a.png").read_bytes() if (root / "a.png").exists() else None for root in disk.each(tmp_path / "x")}
    assert found == {None, b"pixels"}


def test_processes_with_equal_numbers_do_not_meet(tmp_path, monkeypatch):
    """Ranks on two machines, or in two containers, may write the same file on a shared disk."""
    monkeypatch.setattr("os.getpid", lambda: 7)
    with files.new_file(tmp_path / "x") as one, files.new_file(tmp_path / "x") as other:
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "x").read_text() == "one"
    with files.new_directory(tmp_path / "y") as one, files.new_directory(tmp_path / "y") as other:
        (one / "one").touch()
        (other / "other").touch()
    assert [path.name for path in (tmp_path / "y").iterdir()] == ["one"]
    files.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_leftovers_of_a_killed_run(tmp_path):
    (tmp_path / ".part-1-a").mkdir()
    (tmp_path / ".part-1-b.json").touch()
    (tmp_path / "kept").touch()
    files.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/below: found Not a directory; expected a folder that can be written to"):
        files.writable_directory(tmp_path / "file" / "below")
    assert files.writable_directory(tmp_path / "a" / "b").is_dir()
    assert not list((tmp_path / "a" / "b").iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write and read everywhere")
def test_permissions(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="Permission denied"):
        files.writable_directory(tmp_path)
    tmp_path.chmod(0o300)
    with pytest.raises(DataError, match="Permission denied"):
        files.readable_directory(tmp_path)
    tmp_path.chmod(0o700)


def test_a_full_disk_is_told_before_and_while_writing(tmp_path):
    with pytest.raises(
        DataError, match=r"GiB free; expected at least 1048576.00 GiB; free some space, or set LMS3D_CACHE"
    ):
        files.require_space(tmp_path, 2**50)
    with pytest.raises(DataError, match="found No space left on device while writing"), files.reported_writes(tmp_path):
        raise OSError(28, os.strerror(28), str(tmp_path / "image.npy"))


def hold(directory: Path, ready, release) -> None:
    with files.lock(directory):
        ready.set()
        release.wait(30)


def test_the_lock_makes_others_wait_and_say_so(tmp_path, record):
    calls, progress = record
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "x", ready, release))
    other.start()
    assert ready.wait(30)

    def report(done: int, total: int, what: str) -> None:
        progress(done, total, what)
        release.set()  # it has noticed; let it go on

    with files.lock(tmp_path / "x", report, 7):
        assert calls == [(0, 7, f"waiting for another process that works in {tmp_path / 'x'}")]
    other.join(30)
    assert other.exitcode == 0


@pytest.fixture
def held(tmp_path):
    """A process that holds the lock of this folder until the event, which is yielded with it, is set."""
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "x", ready, release))
    other.start()
    assert ready.wait(30)
    yield tmp_path / "x", release
    release.set()
    other.join(30)


def test_without_progress_who_waits_says_so_on_stderr(held, monkeypatch, capsys):
    directory, release = held
    monkeypatch.setattr(files, "_PATIENCE_SECONDS", 0.1)
    print_to_stderr = print

    def told(*values, **options) -> None:
        print_to_stderr(*values, **options)
        release.set()

    monkeypatch.setattr(files, "print", told, raising=False)
    with files.lock(directory):
        pass
    assert capsys.readouterr().err == f"waiting for another process that works in {directory}\n"


def test_nobody_waits_for_short_work_for_ever(held, monkeypatch, capsys):
    directory, _ = held
    monkeypatch.setattr(files, "_PATIENCE_SECONDS", 0.05)
    with (
        pytest.raises(DataError, match=r"x.lock: found it locked by another process"),
        files.lock(directory, longest_seconds=0.05),
    ):
        pass
    assert "waiting for another process" in capsys.readouterr().err


def test_the_key_of_pseudonyms_is_short_work(monkeypatch, tmp_path):
    asked = {}

    @contextmanager
    def lock(path, **options):
        asked.update(options)
        yield

    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path))
    monkeypatch.setattr(files, "lock", lock)
    pseudonyms.forget()
    pseudonyms.pseudonym("a name")
    pseudonyms.forget()
    assert 0 < asked["longest_seconds"] < 600


def test_a_killed_holder_blocks_nobody(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "x", ready, release))
    other.start()
    assert ready.wait(30)
    other.kill()
    other.join(30)
    with files.lock(tmp_path / "x"):
        pass


def test_a_file_system_without_locks_is_refused_in_one_line(tmp_path, monkeypatch):
    """A library's substitute for a lock would stay when a process is killed, and block everybody for ever."""

    def no_flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", no_flock)
    with pytest.raises(DataError, match="found a file system without locks") as caught, files.lock(tmp_path / "x"):
        pass
    assert len(str(caught.value).splitlines()) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from lms3d.data import files
end = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "probe":
    Path.unlink = end
    files.writable_directory(sys.argv[1])
make = files.new_directory if sys.argv[2] == "folder" else files.new_file
with make(Path(sys.argv[1]) / "case") as temporary:
    temporary.touch()
    end()
"""


@pytest.mark.parametrize("at", ["probe", "file", "folder"])
def test_the_next_process_sweeps_what_a_killed_one_left_and_nothing_else(tmp_path, at):
    """Also without a lock, as beside a run's split.json."""
    subprocess.run([sys.executable, "-c", KILLED, tmp_path, at], check=False)
    (left,) = tmp_path.iterdir()
    living = tmp_path / left.name.replace(re.search(r"-(\d+)-", left.name)[0], f"-{os.getpid()}-")
    elsewhere = tmp_path / left.name.replace(socket.gethostname()[:40], "elsewhere")
    for path in (living, elsewhere):
        path.touch()
    files.write_json(tmp_path / "case.json", 1)
    assert sorted(tmp_path.iterdir()) == sorted([living, elsewhere, tmp_path / "case.json"])
