"""What `make` would run."""

import os
import subprocess
from pathlib import Path

import pytest

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
