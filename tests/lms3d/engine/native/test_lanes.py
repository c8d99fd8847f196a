"""The lanes, compiled without TensorFlow and run by `lanes_test.cc`: as they are, under sanitizers, and with their waits taken out.

CUDA's lane runs over a driver that `fake_cuda.cc` plays.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lms3d.engine.native.library import SOURCES, find_compiler
from lms3d.errors import InputError

HERE = Path(__file__).parent
BUILDS = {
    "mutable": ["-DLMS3D_MUTABLE"],
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover"],
}
BOTH = ("programs", "beside_others", "a_failed_step", "drop", "destruction", "other_sizes", "closed_meanwhile")
CASES = {
    "memory": (*BOTH, "rates", "bus", "no_memory"),
    "cuda": (*BOTH, "driver_errors", "failed_waits", "nothing_to_pin", "counted_late", "missing"),
}
MUTATIONS = (
    "HOLD_DOES_NOT_WAIT",
    "ARRIVE_DOES_NOT_WAIT",
    "FETCH_DOES_NOT_WAIT_FOR_COMPUTE",
    "FETCH_DOES_NOT_WAIT_FOR_OUT",
)
ONLY_ON_A_GPU = ("FETCH_DOES_NOT_WAIT_FOR_COMPUTE",)
"""On a processor an operation is complete when its call returns."""
MUTATION = "LMS3D_MUTATION"
"""See `mutations.h`: the variable that names the wait that a mutable build leaves out."""
WRONG_BYTES, FAKE = 3, "libfakecuda.so"


@pytest.fixture(scope="module")
def compiler() -> str:
    try:
        return find_compiler()
    except InputError as error:
        pytest.skip(str(error))


def compile_all(compiler: str, flags: Sequence[str], folder: Path, sources: Sequence[Path]) -> list[Path]:
    """An object file of each."""

    def compile_one(source: Path) -> Path:
        made = folder / f"{source.stem}.o"
        run(compiler, *COMMON, *flags, f"-I{SOURCES}", f"-I{HERE}", "-c", source, "-o", made)
        return made

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_one, sources))


COMMON = ("-std=c++17", "-O0", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")
LANES = [SOURCES / "cuda_lane.cc", SOURCES / "memory_lane.cc", SOURCES / "registry.cc"]


def run(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def link(compiler: str, flags: Sequence[str], folder: Path, objects: Sequence[Path]) -> Path:
    """The program of tests."""
    run(compiler, *flags, "-pthread", *objects, "-ldl", "-o", folder / "lanes_test")
    return folder / "lanes_test"


def fake_driver(compiler: str, flags: Sequence[str], folder: Path) -> Path:
    (made,) = compile_all(compiler, flags, folder, [HERE / "fake_cuda.cc"])
    run(compiler, *flags, "-shared", "-pthread", made, "-o", folder / FAKE)
    return folder / FAKE


def can_link(compiler: str, flags: Sequence[str], folder: Path) -> bool:
    """Whether the sanitizer's library is installed, and runs here."""
    (folder / "nothing.cc").write_text("int main() { return 0; }\n")
    command = [compiler, *flags, str(folder / "nothing.cc"), "-o", str(folder / "nothing")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return False
    return subprocess.run([folder / "nothing"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module", params=BUILDS)
def build(request: pytest.FixtureRequest, compiler: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program and the fake driver. The mutable build, of which nothing is left out, is the plain one."""
    if request.param == "mutable":
        return request.getfixturevalue("mutable")
    flags, folder = BUILDS[request.param], tmp_path_factory.mktemp(request.param)
    if not can_link(compiler, flags, folder):
        pytest.skip(
            f"{compiler} {' '.join(flags)} makes no program that runs: install gcc's libtsan, libasan and libubsan"
        )
    objects = compile_all(compiler, flags, folder, [HERE / "lanes_test.cc", *LANES])
    return link(compiler, flags, folder, objects), fake_driver(compiler, flags, folder)


def outcome(program: Path, case: str, driver: Path | None, mutation: str = "") -> tuple[int, str]:
    """Exit code and stderr."""
    command, environment = [program, case, *([] if driver is None else [driver])], {**os.environ, MUTATION: mutation}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr[-3000:]


@pytest.mark.parametrize("lane", CASES)
def test_lanes(build: tuple[Path, Path], lane: str) -> None:
    program, driver = build
    found = {case: outcome(program, case, driver if lane == "cuda" else None) for case in CASES[lane]}
    assert {case: end for case, end in found.items() if end != (0, "")} == {}


@pytest.fixture(scope="module")
def mutable(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program that leaves out the wait that it is told; the fake driver."""
    folder = tmp_path_factory.mktemp("mutable")
    objects = compile_all(compiler, BUILDS["mutable"], folder, [HERE / "lanes_test.cc", *LANES])
    return link(compiler, [], folder, objects), fake_driver(compiler, [], folder)


@pytest.mark.parametrize("mutation", ["", *MUTATIONS])
def test_a_wait_that_is_missing_shows(mutable: tuple[Path, Path], mutation: str) -> None:
    program, driver = mutable
    ends = {
        "memory": outcome(program, "until_wrong", None, mutation),
        "cuda": outcome(program, "until_wrong", driver, mutation),
    }
    wrong = {lane: code == WRONG_BYTES for lane, (code, _) in ends.items()}
    assert wrong == {"memory": mutation != "" and mutation not in ONLY_ON_A_GPU, "cuda": mutation != ""}, ends


def test_every_mutation_is_tried() -> None:
    assert re.findall(r'IsLeftOut\("(\w+)"\)', (SOURCES / "mutations.h").read_text()) == list(MUTATIONS)
