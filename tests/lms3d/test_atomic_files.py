import errno
import io
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lms3d import atomic_files
from lms3d.errors import InputError, StorageError
from tests.power_cut import PowerCut


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a" / "x.json"
    atomic_files.write_json(path, {"a": 1})

    def fill_the_disk():
        with atomic_files.replacing(path) as partial:
            partial.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match=r"x\.json: No space left"):
        fill_the_disk()
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_names_that_are_no_utf8_are_written_with_backslashes(tmp_path, monkeypatch):
    """As `lms3d.data.files.write_table` does, whatever the locale is."""
    monkeypatch.setattr(io, "text_encoding", lambda encoding, *_: encoding or "ascii")
    atomic_files.write_text(tmp_path / "report.md", "Brain 192³: a\udce9")
    assert (tmp_path / "report.md").read_bytes() == "Brain 192³: a\\udce9".encode()


def test_not_a_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--output .*file"):
        atomic_files.writable_folder(tmp_path / "file", "--output")


def test_folder_is_made(tmp_path):
    assert atomic_files.writable_folder(tmp_path / "a/b", "--output").is_dir()
    assert not list((tmp_path / "a/b").iterdir())


def test_a_power_cut_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "disk" / "run" / "x.json"
    atomic_files.write_json(path, "old")
    disk = PowerCut(tmp_path / "disk", monkeypatch)
    atomic_files.write_json(path, "new")
    found = {(root / "run" / "x.json").read_text() for root in disk.each(tmp_path / "every")}
    assert found == {'"old"\n', '"new"\n'}
    assert {(root / "run" / "x.json").read_text() for root in disk.now(tmp_path / "now")} == {'"new"\n'}


def test_what_is_written_into_a_new_folder_outlasts_a_power_cut(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    disk = PowerCut(tmp_path / "disk", monkeypatch)
    atomic_files.write_text(
        atomic_files.writable_folder(tmp_path / "disk" / "runs" / "a", "--output") / "last" / "x", "new"
    )
    assert [(root / "runs/a/last/x").read_text() for root in disk.now(tmp_path / "now")] == ["new"]


@pytest.mark.parametrize("linked", [True, False])
def test_a_second_name_keeps_the_file_when_the_first_is_replaced(tmp_path, monkeypatch, linked):
    if not linked:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))
    for text in ("one", "two"):
        atomic_files.write_text(tmp_path / "x", text)
        os.utime(tmp_path / "x", (1, 1))
        atomic_files.link_or_copy(tmp_path / "x", tmp_path / "older")
        assert (tmp_path / "older").stat().st_mtime == 1
    atomic_files.write_text(tmp_path / "x", "three")
    assert [(tmp_path / name).read_text() for name in ("x", "older")] == ["three", "two"]
    assert len(list(tmp_path.iterdir())) == 2


def test_file_systems_that_cannot_sync_a_folder(tmp_path, monkeypatch):
    def fsync(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", fsync)
    code = errno.EINVAL
    atomic_files.write_text(tmp_path / "x", "one")
    code = errno.EIO
    with pytest.raises(StorageError, match=r"cannot write .*x: Input/output error; a power cut may undo it"):
        atomic_files.write_text(tmp_path / "x", "two")


def test_a_failed_sync_leaves_the_old_file(tmp_path, monkeypatch):
    atomic_files.write_text(tmp_path / "x", "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(StorageError, match="the previous version is intact"):
        atomic_files.write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "old"


def test_processes_with_equal_numbers_do_not_meet(tmp_path, monkeypatch):
    """As ranks on two machines, or in two containers, that write the same thing on a shared disk."""
    monkeypatch.setattr("os.getpid", lambda: 7)
    with atomic_files.replacing(tmp_path / "x") as one, atomic_files.replacing(tmp_path / "x") as other:
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "x").read_text() == "one"
    unlink = Path.unlink

    def both_at_once(path, **options):
        monkeypatch.setattr(Path, "unlink", unlink)
        atomic_files.writable_folder(tmp_path, "--output")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", both_at_once)
    atomic_files.writable_folder(tmp_path, "--output")


def test_what_killed_processes_left_is_removed(tmp_path):
    (tmp_path / ".checkpoint.host-1-00.partial.npz").touch()
    (tmp_path / "kept.npz").touch()
    atomic_files.remove_partials(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.npz"]


KILLED = """
import os, signal, sys
from pathlib import Path
from lms3d import atomic_files
unlink = Path.unlink
Path.unlink = lambda path, **options: path.exists() and os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "probe":
    atomic_files.writable_folder(Path(sys.argv[1]), "--output")
with atomic_files.replacing(Path(sys.argv[1]) / "table.csv") as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("at", ["probe", "file"])
def test_the_next_process_sweeps_what_a_killed_one_left_and_nothing_else(tmp_path, at):
    """In folders that nobody locks, as of predictions, figures and plans."""
    subprocess.run([sys.executable, "-c", KILLED, tmp_path, at], check=False)
    (left,) = tmp_path.iterdir()
    living = tmp_path / left.name.replace(re.search(r"-(\d+)-", left.name)[0], f"-{os.getpid()}-")
    elsewhere = tmp_path / left.name.replace(socket.gethostname()[:40], "elsewhere")
    others = [living, elsewhere, tmp_path / ".partial-notes", tmp_path / ".probe.txt"]
    for path in others:
        path.touch()
    atomic_files.write_text(tmp_path / "table.csv", "whole")
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "table.csv"])


def test_a_temporary_file_that_cannot_be_removed_is_no_second_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "unlink", refuse)
    atomic_files.write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
