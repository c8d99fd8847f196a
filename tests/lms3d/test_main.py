"""`lms3d COMMAND`: all commands under one name, their usage, versions, and the script for shells."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import lms3d
from lms3d import __main__, completion, errors
from lms3d.common import extras, permissions


@pytest.mark.parametrize(
    ("started", "shown"),
    [
        ("/usr/bin/lms3d", "lms3d train"),
        ("/x/lms3d/__main__.py", "python -m lms3d train"),
        ("/x/lms3d/train.py", "python -m lms3d.train"),
        ("/x/tests/stress/__main__.py", "python -m lms3d.train"),
    ],
)
def test_usage_shows_what_was_typed(monkeypatch, capsys, started, shown):
    monkeypatch.setattr(sys, "argv", [started])
    with pytest.raises(SystemExit) as ended:
        __main__.main(["train", "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {shown} [-h]")


@pytest.mark.parametrize("words", [[], *([name] for name in __main__.COMMANDS)])
def test_every_command_knows_its_version(capsys, words):
    with pytest.raises(SystemExit) as ended:
        __main__.main([*words, "--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"lms3d {lms3d.__version__}\n"


def test_the_list_names_every_command(capsys):
    with pytest.raises(SystemExit):
        __main__.main([])
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in __main__.COMMANDS)


def test_an_unknown_command_is_told_in_one_line(capsys):
    assert __main__.main(["trian"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("lms3d: error: argument COMMAND: invalid choice: 'trian' (choose from 'prepare', 'train',")
    assert told.count("\n") == 1


def test_arguments_and_exit_codes_pass_through(monkeypatch):
    seen = []
    monkeypatch.setattr(import_module("lms3d.plan"), "main", lambda words: seen.append(words) or 3)
    assert __main__.main(["plan", "--resolution", "64"]) == 3
    assert seen == [["--resolution", "64"]]


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_the_script_completes_commands_options_and_choices(shell):
    script = completion.script(shell)
    for word in (*__main__.COMMANDS, "memory-limit", "isensee2017", "skip-bad"):
        assert word in script


def test_the_script_needs_no_package_for_images():
    code = f"import sys; sys.modules |= dict.fromkeys({sorted(extras.IMAGING)}); from lms3d import completion; "
    code += "sys.exit(completion.main(['bash']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "skip-bad" in done.stdout


def test_a_missing_package_of_an_extra_is_told_in_one_line(capsys):
    def work() -> None:
        raise ModuleNotFoundError("No module named 'nibabel.nifti1'", name="nibabel.nifti1")

    assert errors.run(work) == 2
    assert "the package nibabel is not installed; expected those of the extra `imaging`" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):  # a defect of lms3d keeps its traceback
        errors.run(lambda: import_module("lms3d.nowhere"))


@pytest.mark.parametrize(("chosen", "mode"), [("", 0o600), ("007", 0o660), ("27", 0o640)])
def test_files_are_for_the_user_or_for_the_group_that_a_variable_lets_in(tmp_path, monkeypatch, chosen, mode):
    monkeypatch.setenv("LMS3D_UMASK", chosen)
    assert errors.run((tmp_path / "file").touch) == 0
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("chosen", ["9", "u=rw", "700", "0o7"])
def test_a_umask_that_is_none_is_told(monkeypatch, chosen):
    monkeypatch.setenv("LMS3D_UMASK", chosen)
    with pytest.raises(ValueError, match=f"LMS3D_UMASK: found '{chosen}'; expected octal digits"):
        permissions.umask()
