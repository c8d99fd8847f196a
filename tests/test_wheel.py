"""`pip install` of this project brings all code, the source of the native library, and the operations of networks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout, which says what belongs to it")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "source" / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        "./source",
    ]
    subprocess.run([*map(str, command)], cwd=folder, check=True, timeout=600)
    (made,) = folder.glob("lms3d-*.whl")
    return zipfile.ZipFile(made)


def test_it_has_all_code_and_the_source_of_the_native_library(wheel):
    inside = set(wheel.namelist())
    for room in ("lms3d", "models", "data", "experiments"):
        for path in (ROOT / room).rglob("*.py"):
            assert path.relative_to(ROOT).as_posix() in inside
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "lms3d/engine/native/src").iterdir()}
    assert len(sources) > 10
    assert sources <= inside


def test_networks_find_their_operations(wheel):
    (told,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "[models.operations]\nnative = lms3d.engine.native.kernels:operations" in wheel.read(told).decode()
