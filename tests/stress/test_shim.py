"""The shim keeps its promises, and its log knows the files on the disk."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stress import disk, shim

SCRIPT = """
import os, sys
from pathlib import Path
folder = Path(sys.argv[1])
def attempt(what):
    try:
        what()
    except OSError as error:
        print(error.errno, end=" ")
(folder / "sub").mkdir()
def whole():
    with open(folder / "sub" / "a", "wb", buffering=0) as file:
        file.write(b"x" * 1000)
        os.fsync(file.fileno())
attempt(whole)
attempt(lambda: os.replace(folder / "sub" / "a", folder / "a"))
attempt(lambda: (folder / "b").write_bytes(b"y" * 10))
attempt(lambda: os.unlink(folder / "b"))
print("done")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return shim.built(tmp_path_factory.mktemp("library"))


@pytest.fixture
def run(library, tmp_path):
    def run(rule: str = "", script: str = SCRIPT) -> subprocess.CompletedProcess:
        (tmp_path / "watched").mkdir()
        (tmp_path / "scratch").mkdir()
        environment = shim.environment(library, tmp_path / "watched", tmp_path / "scratch", rule)
        command = [sys.executable, "-c", script, tmp_path / "watched"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(
    ("rule", "said", "left"),
    [
        ("", "done", {"sub": None, "a": b"x" * 1000}),
        ("write:sub/a:1:kill", None, {"sub": None, "sub/a": b"x" * 500}),
        ("rename:*:1:kill", None, {"sub": None, "sub/a": b"x" * 1000}),
        ("rename:a:1:EIO", "5 done", {"sub": None, "sub/a": b"x" * 1000}),
        ("*:*:4:kill", None, {"sub": None, "sub/a": b"x" * 1000}),
        ("fsync:sub/*:1:EIO", "5 done", {"sub": None, "a": b"x" * 1000}),
        ("write:sub/a:1:ENOSPC", "28 28 2 done", {"sub": None, "a": b""}),  # stays full: no b is made
        ("write:*/a:1:EIO", "5 done", {"sub": None, "a": b""}),  # once
        ("close:b:1:EDQUOT", "122 done", {"sub": None, "a": b"x" * 1000}),
        ("unlink:b:1:EIO", "5 done", {"sub": None, "a": b"x" * 1000, "b": b"y" * 10}),
        ("write:b/*:1:EIO", "done", {"sub": None, "a": b"x" * 1000}),
    ],
)
def test_a_fault(run, tmp_path, rule, said, left):
    done = run(rule)
    assert done.stdout.strip() == said if said else done.returncode == -9
    assert disk.tree_of(tmp_path / "watched") == left
    assert shim.struck(tmp_path / "scratch") == (rule not in ("", "write:b/*:1:EIO"))
    played = disk.Disk({})
    for event in shim.events(tmp_path / "scratch"):
        played.apply(event)
    assert played.now() == left


EVERY_WAY = """
import ctypes, os, shutil, subprocess, sys
from pathlib import Path
folder = Path(sys.argv[1])
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
(folder / "text").write_text("some text\\n" * 5000)
file = os.open(folder / "calls", os.O_RDWR | os.O_CREAT)
os.pwrite(file, b"later", 7)
os.writev(file, [b"one", b"two"])
os.pwritev(file, [b"three", b"four"], 20)
os.ftruncate(file, 25)
os.close(file)
stream = ctypes.c_void_p(libc.fopen(bytes(folder / "stream"), b"w"))
for piece in (b"by stdio", b" in pieces"):
    libc.fwrite(piece, 1, len(piece), stream)
libc.fclose(stream)
shutil.copyfile(folder / "text", folder / "copy")
os.link(folder / "text", folder / "link")
os.truncate(folder / "copy", 11)
with open(folder / "text", "a") as more:
    more.write("more")
subprocess.run(["sh", "-c", "echo child > $0/child; mkdir $0/d; echo x > $0/d/x; mv $0/d $0/e", folder], check=True)
directory = os.open(folder, os.O_RDONLY)
os.unlink("link", dir_fd=directory)
shutil.rmtree(folder / "e")
"""


def test_the_log_sees_every_byte_by_every_way(run, tmp_path):
    assert run(script=EVERY_WAY).returncode == 0
    played = disk.Disk({})
    for event in shim.events(tmp_path / "scratch"):
        played.apply(event)
    there = disk.tree_of(tmp_path / "watched")
    assert played.now() == there
    assert there.keys() == {"text", "calls", "stream", "copy", "child"}
    assert there["stream"] == b"by stdio in pieces"


def test_a_power_cut_takes_what_was_not_synced(run, tmp_path):
    run()
    cuts = dict(disk.after_power_cuts({}, shim.events(tmp_path / "scratch")))
    assert {frozenset(tree.items()) for tree in cuts.values()} == {
        frozenset(tree.items())
        for tree in (
            {},
            {"sub": None},
            {"sub": None, "sub/a": b""},
            {"sub": None, "sub/a": b"x" * 1000},
            {"sub": None, "a": b"x" * 1000},
            {"sub": None, "a": b"x" * 1000, "b": b""},
        )
    }
