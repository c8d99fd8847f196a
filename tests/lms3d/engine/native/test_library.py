"""How the library of operations is found or built, and the message if neither works."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lms3d import doctor
from lms3d.engine.native import library
from lms3d.errors import InputError

ELF = b"\x7fELF"


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """A cache folder of the test's own, and nothing loaded. Compilers are of the test's making."""
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(library.GIVEN, raising=False)
    monkeypatch.setattr(library, "_loaded", library._loaded.__wrapped__)
    return tmp_path / "cache" / "native"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Makes a program that stands for the compiler: it runs `script`, with `$out` for the file to make."""

    def make(script: str) -> Path:
        path = tmp_path / "cxx"
        find = 'case "$1" in -*version) echo 1.0; exit 0;; esac\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done\n'
        path.write_text(f"#!/bin/sh\n{find}{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return make


def refusal() -> str:
    with pytest.raises(InputError) as caught:
        library.library()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_compiler_says_is_one_line(anew, compiler):
    path = compiler(
        "echo 'lanes.h: In function'; echo 'a.cc:3: fatal error: no such header' >&2; echo more >&2; exit 1"
    )
    assert refusal().startswith(
        f"{path} could not compile the swap engine: a.cc:3: fatal error: no such header; look at"
    )
    assert [one.suffix for one in anew.iterdir()] == [".lock"]


def test_without_a_compiler(anew, monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "found no C++ compiler" in refusal()
    finding = doctor._swap_engine()["swap engine"]
    assert not finding.ok
    assert "apt-get install g++" in finding.advice
    assert library.main([]) == 0  # `make venv` goes on
    assert library.main([str(tmp_path / "copy.so")]) == InputError.exit_code
    assert not (tmp_path / "copy.so").exists()


def test_it_is_copied_for_machines_without_a_compiler(anew, compiler, tmp_path, capsys):
    compiler("echo made > $out")
    assert library.main([str(tmp_path / "copy.so")]) == 0
    assert (tmp_path / "copy.so").read_text() == "made\n"
    assert capsys.readouterr().out == f"swap engine: {tmp_path / 'copy.so'}\n"


@pytest.mark.parametrize("content", ["", "no library"])
def test_a_given_file_that_is_no_library(anew, monkeypatch, tmp_path, content):
    (tmp_path / "given.so").write_text(content)
    monkeypatch.setenv(library.GIVEN, str(tmp_path / "given.so"))
    assert f"the native library '{tmp_path}/given.so' does not load: " in refusal()
    monkeypatch.setenv(library.GIVEN, str(tmp_path / "missing.so"))
    assert "no such file; name a compiled library, or unset it" in refusal()


def test_a_given_library_of_other_sources(anew, monkeypatch, tmp_path):
    (tmp_path / "other.cc").write_text('extern "C" int lms3d_close() { return 0; }\n')
    try:
        command = [library.find_compiler(), "-shared", "-fPIC", tmp_path / "other.cc", "-o", tmp_path / "other.so"]
    except InputError as error:
        pytest.skip(str(error))
    subprocess.run(command, check=True)
    monkeypatch.setenv(library.GIVEN, str(tmp_path / "other.so"))
    assert "undefined symbol: lms3d_" in (said := refusal())
    assert "it must be compiled from this version of lms3d" in said


def test_those_who_start_together_compile_once(anew, compiler, tmp_path):
    compiler(f'echo once >> {tmp_path}/log; sleep 0.3; echo made > "$out"')
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: library.compiled(), range(4)))
    assert len(paths) == 1
    assert (tmp_path / "log").read_text() == "once\n"
    assert stat.S_IMODE(anew.stat().st_mode) == 0o700


def test_a_compilation_that_was_killed_leaves_nothing_behind(anew, compiler, tmp_path):
    compiler(f'echo half > "$out"; touch {tmp_path}/begun; sleep 60')
    code = "from lms3d.engine.native.library import compiled; compiled()"
    killed = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True)
    while not (tmp_path / "begun").exists():
        assert killed.poll() is None
        time.sleep(0.05)
    os.killpg(killed.pid, 9)
    killed.wait()
    assert not [*anew.glob("*.so")]
    script = (tmp_path / "cxx").read_text()
    (tmp_path / "cxx").write_text(script.replace("echo half", "echo whole").replace("sleep 60", ""))
    assert library.compiled().read_text() == "whole\n"
    assert not [*anew.glob("compiling-*")]


def test_a_folder_in_which_others_may_write_is_refused(anew, compiler):
    compiler('echo made > "$out"')
    planted = library.compiled()
    assert planted.exists()
    anew.chmod(0o777)
    assert "others may write there" in refusal()


def test_a_folder_that_cannot_be_made(anew, compiler):
    compiler('echo made > "$out"')
    anew.parent.write_text("a file")
    assert f"the swap engine cannot be kept in {str(anew)!r}: " in refusal()


def test_two_threads_get_the_same(monkeypatch):
    """TensorFlow tells the operations of a library only once."""
    seen: list[int] = []

    def load() -> str:
        seen.append(1)
        time.sleep(0.05)
        assert len(seen) == 1, "two load at the same time"
        seen.pop()
        return "loaded"

    monkeypatch.setattr(library, "_loaded", load)
    threads = [threading.Thread(target=library.library) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == []


def test_the_wheel_holds_the_sources():
    import tomllib

    settings = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["package-data"]["lms3d.engine.native"] == ["src/*"]
    assert "lms3d.engine.native" in settings["packages"]


def test_the_doctor_says_which_it_is():
    finding = doctor._swap_engine()["swap engine"]
    assert finding.fact.startswith("native, ") == finding.ok == (not library.missing())
