"""`python -m data.prepare`: what a newcomer sees."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.brats import cache
from data.prepare import main

ROOT = Path(cache.__file__).parents[2]


def test_from_the_command_line(data_set, tmp_path):
    command = [
        sys.executable,
        "-m",
        "data.prepare",
        str(data_set),
        "--resolution",
        "16",
        "--cache",
        str(tmp_path / "c"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    assert "5 cases of BraTS 2020, labels of brats2020, 0 without truth" in done.stdout
    built = Path(done.stdout.split("cache: ")[1].strip())
    assert len(json.loads((built / "index.json").read_text())["ids"]) == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["{empty}"], "found no case; expected folders"),
        (["{absent}"], "found nothing; expected a folder"),
        (["{set}", "--resolution", "50"], "--resolution: found 50; expected a multiple of 16"),
        (["{set}", "--resolution", "0"], "--resolution: found 0"),
        (["{set}", "--labels", "2020"], "--labels: found '2020'; expected one of"),
        (["{set}", "--resolution", "abc"], "--resolution: invalid int value: 'abc'"),
        (["{set}", "--workers", "0"], "workers: found 0"),
        (["{set}", "--cache", "/proc/nowhere"], "expected a folder that can be written to"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(data_set, tmp_path, capsys, options, expected):
    (tmp_path / "empty").mkdir()
    places = {"empty": tmp_path / "empty", "absent": tmp_path / "absent", "set": data_set}
    arguments = [option.format(**places) for option in options]
    if "--cache" not in arguments:
        arguments += ["--cache", str(tmp_path / "c")]
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1
    assert lines[0].startswith("data.prepare: error: ")
    assert expected in lines[0]


def test_a_bad_file_is_named(data_set, tmp_path, capsys):
    (data_set / "BraTS20_Training_002" / "BraTS20_Training_002_t1ce.nii.gz").write_bytes(b"\x1f\x8b")
    assert main([str(data_set), "--resolution", "16", "--cache", str(tmp_path / "c"), "--workers", "1"]) == 2
    assert "BraTS20_Training_002_t1ce.nii.gz: found a file that cannot be read" in capsys.readouterr().err


def test_interrupted(data_set, tmp_path, capsys, monkeypatch):
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "build", interrupt)
    assert main([str(data_set), "--resolution", "16"]) == 130
    assert "run again to go on" in capsys.readouterr().err


def test_a_disk_that_fails_where_nobody_looks_is_one_line(data_set, capsys, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error", "/disk/cubes.lock")

    monkeypatch.setattr("data.prepare.cache.build", fail)
    assert main([str(data_set), "--workers", "1"]) == 2
    assert "error: /disk/cubes.lock: found Input/output error; expected a disk that works" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "Check a data set and build its training cache" in capsys.readouterr().out
