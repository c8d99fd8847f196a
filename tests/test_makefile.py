"""What `make` would run, and in which order tests come."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import SLOW, file_seconds, pytest_collection_modifyitems

ROOT = Path(__file__).parent.parent


def made(target: str) -> list[str]:
    """The commands of a target, without running them."""
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_quick_needs_no_horovod_and_leaves_slow_tests_out():
    quick, everything = made("quick"), made("test")
    assert not any("horovod" in line for line in quick)
    assert any("deploy.horovod.build" in line for line in everything)
    (tests,) = [line for line in quick if "pytest" in line]
    assert "-m 'not slow'" in tests
    assert "not slow" not in "".join(everything)
    assert any("ruff check" in line for line in quick)


def test_compat_runs_the_fast_tests_in_an_environment_of_its_own():
    ours, commands = made("venv"), made("compat")
    assert not any(".venv-compat" in line for line in ours)
    assert all(".venv-compat" in line for line in commands if "python" in line)
    assert not any("constraints.txt" in line for line in commands)  # the newest of all
    assert any("'tensorflow>=" in line for line in commands)
    assert "-m 'not slow'" in commands[-1]


def test_torture_runs_all_parts_but_for_what_narrows_it():
    assert made("torture")[-1].split()[1:] == ["-m", "tests.stress"]


def test_every_target_is_in_the_list():
    listed = "\n".join(made("help"))
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = [line.split()[1:] for line in makefile.splitlines() if line.startswith(".PHONY:")]
    assert "quick" in phony
    assert [f"make {target} " for target in phony if target != "help" and f"# make {target} " not in makefile] == []
    assert "sed" in listed  # `help` prints that list


@pytest.mark.parametrize(("target", "kept"), [("test", ""), ("quick", ""), ("train", "1")])
def test_tests_keep_what_they_compile_whatever_the_user_has_set(target, kept):
    told = f"{target}: probe\nprobe: ; +@echo [$$PYTHONDONTWRITEBYTECODE]"  # `+` runs even where nothing else does
    done = subprocess.run(
        ["make", "-n", "--eval", told, target], cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert f"[{kept}]" in done.stdout.splitlines(), done.stderr


def test_what_is_called_slow_is_there():
    for name in SLOW:
        place, _, test = name.partition("::")
        assert (ROOT / "tests" / place).exists(), name
        assert not test or f"def {test}" in (ROOT / "tests" / place).read_text(), name


def test_whole_commands_and_ranks_are_slow_and_workers_begin_with_the_slowest_files():
    class Item:
        def __init__(self, name: str) -> None:
            self.nodeid, self.marks = f"tests/{name}", []

        def add_marker(self, mark) -> None:
            self.marks.append(mark.name)

    names = ["data/test_case.py::test_a", "data/phantoms/test_brains.py::test_the_same_seed_x",
             "data/phantoms/test_brains.py::test_b",
             "integration/test_new.py::test_c", "integration/test_train.py::test_d", "lms3d/engine/test_ir.py::test_e"]  # fmt: skip
    alone, shared = ([Item(name) for name in names] for _ in range(2))
    pytest_collection_modifyitems(SimpleNamespace(), alone)
    assert [item.nodeid for item in alone] == [f"tests/{name}" for name in names]
    assert [bool(item.marks) for item in alone] == [False, True, False, True, True, False]
    pytest_collection_modifyitems(SimpleNamespace(workerinput={}), shared)
    assert [names.index(item.nodeid.removeprefix("tests/")) for item in shared] == [
        4,
        1,
        2,
        3,
        0,
        5,
    ]  # files stay together


def test_a_file_takes_what_its_slow_tests_take():
    named = [seconds for name, seconds in SLOW.items() if name.startswith("models/test_chexnet.py::")]
    assert len(named) > 1
    assert file_seconds("tests/models/test_chexnet.py::test_any") == sum(named)
    assert file_seconds("tests/integration/test_new.py::test_any") == SLOW["integration/"]
    assert file_seconds("tests/lms3d/engine/test_ir.py::test_any") == 0
