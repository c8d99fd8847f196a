from pathlib import Path

import pytest

from lms3d import cli, command_options
from lms3d.errors import InputError


@pytest.fixture
def parser():
    made = cli.Parser(prog="x")
    command_options.add_data_options(made)
    command_options.add_model_options(made)
    command_options.add_task_options(made)
    command_options.add_step_options(made)
    command_options.add_training_options(made)
    command_options.add_memory_options(made)
    command_options.add_run_options(made)
    return made


def test_only_what_was_given_is_in_the_namespace(parser):
    assert vars(parser.parse_args(["--lms", "--memory-limit", "2GiB"])) == {"lms": True, "memory_limit": 2**31}


@pytest.mark.parametrize(
    ("given", "meant"),
    [("auto", "auto"), ("off", "off"), ("16", "16/8"), ("16/8", "16/8"), ("4/1", "4/1"), ("1", "off")],
)
def test_slabs_have_one_way_to_be_written(parser, given, meant):
    assert vars(parser.parse_args(["--slabs", given])) == {"slabs": meant}


def test_slabs_that_are_none(parser):
    with pytest.raises(
        InputError, match="--slabs: slabs 'many': expected auto, off, or slabs per level such as 16 or 16/8"
    ):
        parser.parse_args(["--slabs", "many"])


def test_folders_are_meant_from_here(parser, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = vars(parser.parse_args(["--data", "set", "--split", "~/s.json", "--swap-dir", "/swap", "--output", "run"]))
    assert given == {
        "data": tmp_path / "set", "split": Path.home() / "s.json", "swap_dir": Path("/swap"), "output": Path("run"),
    }  # fmt: skip
    assert vars(parser.parse_args(["--output=~/run"])) == {"output": Path.home() / "run"}
    for option in ("--output", "--data"):
        with pytest.raises(InputError, match=option):
            parser.parse_args([option, ""])


def test_values(parser):
    line = "--resolution 96 --serialization 3,5:8,::2 --profile 2:20-50 --no-lms --learning-rate 1e-3"
    assert vars(parser.parse_args(line.split())) == {
        "resolution": 96,
        "serialization": (3, "5:8", "::2"),
        "profile": (2, 20, 50),
        "lms": False,
        "learning_rate": 1e-3,
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--resolution 100", "96 and 112"),
        ("--resolution 8", "16 and 32"),
        ("--resolution x", "multiple of 16"),
        ("--model resnet", "isensee2017"),
        ("--memory-limit lots", "--memory-limit: 'lots' is not a size"),
        ("--epochs 0", "--epochs: 0 is too small"),
        ("--learning-rate nan", "out of range"),
        ("--validation-fraction 1", "out of range"),
        ("--profile 1:5-2", "EPOCH:FIRST-LAST"),
        ("--serialization 3;5", "3,5:8"),
        ("--serialization 3,:", "3,5:8"),
        ("--colour blue", "--colour"),
        ("--swapout-threshold 0", "too small"),
        ("--seed 20240131123456", "20240131123456 is too large; the most is 4294967295"),
        ("--resolution 1600000", "too large; the most is 4096"),
        ("--box 160x160x16000", "too large"),
        ("--batch-size 99999999999999", "too large"),
        (f"--memory-limit {'9' * 400}", "is not a size"),
    ],
)
def test_wrong_values(parser, line, message):
    with pytest.raises(InputError, match="--help") as caught:
        parser.parse_args(line.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
