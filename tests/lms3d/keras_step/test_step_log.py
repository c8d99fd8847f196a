"""The file of step figures: it grows with a run, and a resumed run goes on in it."""

import csv
from pathlib import Path

import pytest

from lms3d.keras_step import step_averages
from lms3d.keras_step.step_log import COLUMNS, StepStatistics


def run(file: Path, steps: int) -> StepStatistics:
    statistics = StepStatistics(file)
    plan = statistics.next_plan()
    for _ in range(steps):
        statistics.add({"kind": "train", "plan": plan, "seconds": 1.5, "peak_bytes": 7})
    return statistics


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_steps_and_plans_of_a_resumed_run_count_on(tmp_path):
    file = tmp_path / "lms_stats.csv"
    run(file, 3)
    resumed = run(file, 2)
    rows = read(file)
    assert tuple(rows[0]) == COLUMNS
    assert [(row["step"], row["plan"]) for row in rows] == [("0", "1"), ("1", "1"), ("2", "1"), ("3", "2"), ("4", "2")]
    assert resumed.steps == 2


@pytest.mark.parametrize("rest", ["3,tra\n", "3,tra", "3,train,1,1.5\r"])
def test_a_line_that_was_cut_off_does_not_stop_a_run(tmp_path, rest):
    file = tmp_path / "lms_stats.csv"
    run(file, 3)
    with file.open("a", newline="") as opened:
        opened.write(rest)
    run(file, 1)
    assert [row["step"] for row in read(file)] == ["0", "1", "2", "3", "4"]
    assert read(file)[-1]["peak_bytes"] == "7"


def test_zeros_that_a_power_cut_has_left_stop_no_run(tmp_path, capsys):
    file = tmp_path / "lms_stats.csv"
    run(file, 3)
    content = file.read_bytes()
    file.write_bytes(content + bytes(200_000))
    assert run(file, 1).steps == 1
    assert step_averages.write(file, tmp_path / "averages.csv", warm_up=0) is None
    said = capsys.readouterr().err.splitlines()
    assert [str(file) in line for line in said] == [True, True]
    assert "training goes on" in said[0]
    file.write_bytes(content + b"9" * 5000 + b",train," + b"9" * 5000 + b"\n")  # more digits than Python reads
    assert run(file, 1).next_step == 4


def test_a_file_of_an_earlier_version_keeps_its_columns(tmp_path):
    file = tmp_path / "lms_stats.csv"
    file.write_text("step,kind,seconds\n0,train,1.0\n")
    run(file, 1)
    assert read(file) == [
        {"step": "0", "kind": "train", "seconds": "1.0"},
        {"step": "1", "kind": "train", "seconds": "1.5"},
    ]


def test_an_empty_file_gets_a_header(tmp_path):
    file = tmp_path / "lms_stats.csv"
    file.touch()
    run(file, 1)
    assert tuple(read(file)[0]) == COLUMNS


def test_averages_are_those_of_a_plan(tmp_path):
    statistics = StepStatistics()
    for plan, seconds, peak in ((1, 9.0, 5), (1, 2.0, 7), (1, 3.0, 6), (2, 8.0, 1), (2, 1.0, 2)):
        statistics.add({"kind": "train", "plan": plan, "seconds": seconds, "peak_bytes": peak})
    assert (statistics.median_seconds(1), statistics.peak_bytes(1), statistics.steps_of(1)) == (2.5, 7, 3)
    assert (statistics.median_seconds(2), statistics.peak_bytes(2)) == (1.0, 2)
    assert (statistics.median_seconds(3), statistics.peak_bytes(3)) == (None, None)


def test_a_file_that_cannot_be_written_is_told_once_and_stops_nobody(tmp_path, capsys):
    file = tmp_path / "lms_stats.csv"
    statistics = run(file, 1)
    file.unlink()
    file.symlink_to("/dev/full")
    for _ in range(2):
        statistics.add({"kind": "train", "plan": 1, "seconds": 1.5, "peak_bytes": 7})
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file}: No space left on device" in line
    assert "swap" not in line
    assert statistics.steps == 3
    assert statistics.peak_bytes(1) == 7


def test_a_file_that_cannot_be_read_stops_nobody_either(tmp_path, capsys):
    statistics = run(tmp_path, 1)  # a folder
    (line,) = capsys.readouterr().err.splitlines()
    assert "Is a directory" in line
    assert statistics.steps == 1


def test_rows_know_their_epoch_and_are_empty_where_there_is_none(tmp_path):
    statistics = StepStatistics(tmp_path / "lms_stats.csv")
    for epoch in (None, 3):
        statistics.epoch = epoch
        assert statistics.next_step == (epoch is not None)
        statistics.add({"kind": "train", "plan": 1, "seconds": 1.5, "peak_bytes": 7})
    assert [row["epoch"] for row in read(statistics.file)] == ["", "3"]
    assert {row["host_bytes_in_use"] for row in read(statistics.file)} == {""}
