"""run.toml: --config reads the file that a run writes, and names an error in it in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lms3d import tasks, train
from lms3d.errors import InputError
from lms3d.training import option_file, run_folder

RUNS: dict[str, dict[str, Any]] = {
    "few": {},
    "lists": {"stages": ((64, 20), (96, 10)), "serialization": (3, "5:8"), "distort": ("noise", "gamma")},
    "a box": {"box": (160, 192, 160), "memory_limit": 6 << 30, "slabs": "16/8", "lms": True, "learning_rate": 1e-5},
    "text": {"data": Path('/a folder/with "quotes", \\ and é'), "labels": "brats2021", "augment": False},
    "X-rays": {"task": "chexnet", "model": "resnet50", "seed": 7, "ema": 0.999},
}


def read(text: str, folder: Path) -> dict[str, Any]:
    (folder / "run.toml").write_text(text)
    return option_file.read(folder / "run.toml", train._parser())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_repeated_from_the_file_that_it_wrote(tmp_path, name):
    options = tasks.chosen(RUNS[name])
    option_file.write(tmp_path, options)
    again = option_file.read(tmp_path / option_file.NAME, train._parser())
    assert tasks.chosen(again) == options
    assert set(again) <= {"task", "model", *RUNS[name]}, "defaults stay defaults"


def test_people_may_write_it_as_they_would_type(tmp_path):
    text = 'memory-limit = "6GiB"\nbox = "160x192x160"\nlms = false\nresume = true\nstages = "64:20"\nepochs = 3\n'
    assert read(text, tmp_path) == {
        "memory_limit": 6 << 30, "box": (160, 192, 160), "lms": False, "resume": True, "stages": ((64, 20),), "epochs": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resolutoin = 96", "found no option 'resolutoin'; did you mean resolution?"),
        ("wholly_other = 1", "found no option 'wholly_other'; see python -m lms3d.train --help"),
        ("resolution = 50", "argument --resolution: 50 is not a multiple of 16"),
        ("resolution = true", "resolution: found 'True'; expected a number, a text or a list"),
        (
            "[training]\nepochs = 3",
            "found no option 'training', but a table [training]; expected options without a table",
        ),
        ("memory-limit = '6GiB'\nmemory_limit = '7GiB'", "found memory-limit and memory_limit, which are one option"),
        ("resolution = 96.0", "argument --resolution: 96.0 is not a whole number and a multiple of 16; write 96"),
        ("resolution = 100.7", "argument --resolution: 100.7 is not a whole number and a multiple of 16; write 96"),
        ("box = [160, 192]", "argument --box: '160,192' is not three sides such as 160x192x160"),
        ("lms = 1", "lms: found 1; expected true or false"),
        ("resume = false", "resume: found False; expected true"),
        ("resolution = ", "run.toml: Invalid value"),
        ("config = 'other.toml'", "found no option 'config'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        read(text, tmp_path)
    assert message in str(caught.value)
    assert "run.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path, capsys):
    assert train.main(["--config", str(tmp_path / "none.toml")]) == 2
    assert (
        "none.toml: No such file or directory; expected a file such as the run.toml of a run" in capsys.readouterr().err
    )


def test_the_command_line_wins(tmp_path):
    (tmp_path / "mine.toml").write_text('box = "160x192x160"\nseed = 3\nlms = false\n')
    words = ["--config", str(tmp_path / "mine.toml"), "--resolution", "64", "--lms"]
    assert train._given(train._parser(), words) == {"resolution": 64, "lms": True, "seed": 3}


def test_every_run_writes_it(tmp_path):
    options = tasks.chosen({"seed": 7})
    run_folder.announce(tmp_path, options, [])
    assert 'model = "isensee2017"\nseed = 7\n' in (tmp_path / "run.toml").read_text()
