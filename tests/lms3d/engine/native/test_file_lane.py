"""The lane of files, compiled without TensorFlow and run by `files_test.cc`: as it is, and under sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from lms3d.engine.native.library import SOURCES, find_compiler
from lms3d.errors import InputError
from tests.lms3d.engine.native.test_lanes import BUILDS, HERE, can_link, compile_all, run

_NAMES = ("copiers", "file_lane", "registry", "swap_file", "system")


def program(name: str, folder: Path, flags: Sequence[str], sources: Sequence[str]) -> Path:
    """A program of tests; skips if none can be made."""
    try:
        compiler = find_compiler()
    except InputError as error:
        pytest.skip(str(error))
    if not can_link(compiler, flags, folder):
        pytest.skip(f"{compiler} makes no program with {' '.join(flags)}: install the sanitizers' libraries")
    objects = compile_all(compiler, flags, folder, [HERE / f"{name}.cc", *(SOURCES / f"{one}.cc" for one in sources)])
    run(compiler, *flags, "-pthread", *objects, "-ldl", "-o", folder / name)
    return folder / name


@pytest.mark.parametrize("build", BUILDS)
def test_the_lane_of_files(tmp_path: Path, build: str) -> None:
    made, folder = program("files_test", tmp_path, BUILDS[build], _NAMES), tmp_path / "swap"
    folder.mkdir()
    done = subprocess.run([made, folder], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr[-3000:]) == (0, "")


def test_a_lane_that_finds_too_few_threads_is_an_error_that_can_be_told(tmp_path: Path) -> None:
    """As in a container that may have no more processes; it was an abort."""
    made = program("threads_test", tmp_path, [], (*_NAMES, "memory_lane"))
    done = subprocess.run([made, tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr[-3000:]) == (0, "")
