"""lms_stats_average.csv: one row for each kind of step, without the first steps of each plan."""

import csv

from lms3d.keras_step import step_averages
from lms3d.keras_step.step_log import StepStatistics


def written(file, rows, epoch=None):
    log = StepStatistics(file)
    log.epoch = epoch
    for kind, plan, seconds, peak in rows:
        log.add({"kind": kind, "plan": plan, "seconds": seconds, "peak_bytes": peak, "host_peak_bytes": peak})


def averaged(file, warm_up):
    path = step_averages.write(file, file.with_name("average.csv"), warm_up=warm_up)
    with path.open(newline="") as opened:
        return {row["kind"]: row for row in csv.DictReader(opened)}


def test_the_first_steps_of_each_plan_are_left_out(tmp_path):
    file = tmp_path / "lms_stats.csv"
    written(file, [("train", 1, 90.0, 9), ("train", 1, 2.0, 5), ("test", 2, 50.0, 1), ("train", 1, 4.0, 7)])
    written(file, [("train", 3, 70.0, 8), ("train", 3, 6.0, 6)])  # of a resumed run: another session, another plan
    found = averaged(file, 1)
    assert found["train"]["steps"] == "3"
    assert float(found["train"]["seconds"]) == 4.0
    assert found["train"]["peak_bytes"] == found["train"]["host_peak_bytes"] == "7"
    assert (found["test"]["steps"], found["test"]["seconds"]) == ("0", "")
    assert averaged(file, 0)["test"]["seconds"] == "50.0"


def test_what_is_not_known_stays_empty_and_a_cut_line_harms_nothing(tmp_path):
    file = tmp_path / "lms_stats.csv"
    written(file, [("train", 1, 2.0, 5)])
    with file.open("a", newline="") as opened:
        opened.write("1,train,1,4.0,x")
    row = averaged(file, 0)["train"]
    assert (row["steps"], row["seconds"], row["peak_bytes"]) == ("2", "3.0", "5")
    assert row["swap_in_seconds"] == ""


def test_columns_of_an_older_file_are_enough(tmp_path):
    file = tmp_path / "lms_stats.csv"
    file.write_text("step,kind,plan,seconds\n0,train,1,1.0\n1,train,1,3.0\n")
    assert averaged(file, 1)["train"]["seconds"] == "3.0"


def test_no_file_no_averages(tmp_path):
    assert step_averages.write(tmp_path / "none.csv", tmp_path / "average.csv", warm_up=0) is None
    assert not list(tmp_path.iterdir())
