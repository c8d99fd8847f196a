"""The lane of files, compiled without TensorFlow and run by `files_test.cc`: as it is, and under sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lms3d.engine.native.library import SOURCES, find_compiler
from lms3d.errors import InputError
from tests.lms3d.engine.native.test_lanes import BUILDS, HERE, can_link, compile_all, run

_NAMES = ("copiers", "file_lane", "registry", "swap_file", "system")


@pytest.mark.parametrize("build", BUILDS)
def test_the_lane_of_files(tmp_path: Path, build: str) -> None:
    try:
        compiler = find_compiler()
    except InputError as error:
        pytest.skip(str(error))
    if not can_link(compiler, BUILDS[build], tmp_path):
        pytest.skip(f"{compiler} makes no program with {' '.join(BUILDS[build])}: install the sanitizers' libraries")
    sources = [HERE / "files_test.cc", *(SOURCES / f"{name}.cc" for name in _NAMES)]
    objects = compile_all(compiler, BUILDS[build], tmp_path, sources)
    program, folder = tmp_path / "files_test", tmp_path / "swap"
    run(compiler, *BUILDS[build], "-pthread", *objects, "-o", program)
    folder.mkdir()
    done = subprocess.run([program, folder], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr[-3000:]) == (0, "")
