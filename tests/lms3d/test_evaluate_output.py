"""What `lms3d.evaluate` leaves in its output folder, and options that it cannot follow: refused, in one line."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from lms3d import evaluate
from lms3d.tasks.volumes import report
from lms3d.training.run_lock import RunLock
from tests.data.small_data import random_case, save, write_case
from tests.lms3d.test_evaluate import write_predictions

pytestmark = pytest.mark.usefixtures("unrendered")


def test_nothing_of_an_earlier_call_stays_beside_the_new_report(tiny_brats, tmp_path):
    for name in ("a", "b"):
        write_predictions(tiny_brats, tmp_path / name, 16)
    out = tmp_path / "out"
    assert evaluate.main([str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(out), "--worst", "1"]) == 0
    first = {path.name for path in out.iterdir()}
    assert {"comparison.csv", "paired.png", "paired.pdf", "worst.png", "strata.csv", "dice_cube.pdf"} <= first
    assert first <= report.names()
    (out / "notes.csv").write_text("mine")
    command = [str(tmp_path / "a/native"), "--truth", str(tiny_brats), "--worst", "0"]
    assert evaluate.main([*command, "--output", str(out)]) == 0
    second = {path.name for path in out.iterdir()}
    assert second < first | {"notes.csv"}
    assert not second & {"comparison.csv", "paired.png", "paired.pdf", "worst.png", "dice_cube.png", "dice_cube.pdf"}
    assert (out / "notes.csv").read_text() == "mine"


def test_two_calls_do_not_share_a_folder(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "a", 16)
    (tmp_path / "out").mkdir()
    with RunLock() as lock:
        assert lock.take(tmp_path / "out")
        assert evaluate.main([str(tmp_path / "a"), "--output", str(tmp_path / "out")]) == 2
    assert f"--output {tmp_path / 'out'} is in use by process" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_names_that_are_no_utf8_are_in_every_table_and_figure(tmp_path, capsys):
    cases = [f"BraTS20_Tr\udcff_{number}" for number in (1, 2)]
    for number, case in enumerate(cases):
        arrays = random_case(number)
        write_case(tmp_path / "set" / case, arrays)
        save(np.roll(arrays["truth"], number, axis=0), tmp_path / "p\udcfe" / f"{case}.nii.gz")
    out = tmp_path / "out\udcfd"
    assert evaluate.main([str(tmp_path / "p\udcfe"), "--truth", str(tmp_path / "set"), "--output", str(out)]) == 0
    with open(out / "scores.csv", newline="", encoding="utf-8") as file:
        found = {(row["predictions"], row["case"]) for row in csv.DictReader(file)}
    assert found == {(r"p\udcfe", case.replace("\udcff", r"\udcff")) for case in cases}
    assert r"BraTS20_Tr\udcff_1" in (out / "report.html").read_text(encoding="utf-8")
    assert (out / "worst.png").exists()
    assert r"out\udcfd/report.html" in capsys.readouterr().out.encode().decode()


def test_our_own_label_maps_tell_what_they_mean(tiny_brats, tmp_path, capsys):
    write_predictions(tiny_brats, tmp_path / "a", 16)
    assert evaluate.main([str(tmp_path / "a"), "--prediction-labels", "nnunet"]) == 2
    error = capsys.readouterr().err
    assert f"--prediction-labels is for label maps of other programs, and {tmp_path / 'a'} tells" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("p", "--truth", ""), "argument --truth: an empty path"),
        (("p", "--output", ""), "argument --output: an empty path"),
        (("p", "--submission", ""), "argument --submission: an empty path"),
        (("p", ""), "argument PREDICTIONS: an empty path"),
        (("p", "--labels", ""), "argument --labels: an empty name"),
        (("p", "--scoring", ""), "argument --scoring: an empty name"),
        (("p", "--prediction-labels", ""), "argument --prediction-labels: an empty name"),
        (("--group", "a=runs/1,"), "argument --group: 'a=runs/1,' is not NAME=RUN,RUN"),
        (("--pool", "=runs/1"), "argument --pool: '=runs/1' is not NAME=RUN,RUN"),
    ],
)
def test_a_variable_that_was_not_set_is_one_line(capsys, arguments, says):
    assert evaluate.main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("option", "value"), [("--margin", "0.01"), ("--worst", "0")])
def test_options_of_label_maps_are_refused_for_radiographs(tmp_path, capsys, option, value):
    (tmp_path / "predictions.csv").write_text("image\n")
    assert evaluate.main([str(tmp_path / "predictions.csv"), option, value]) == 2
    assert f"{option} is for label maps, and " in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--group", "--pool"])
def test_tables_of_findings_are_not_taken_together(tmp_path, capsys, option):
    (tmp_path / "predictions.csv").write_text("image\n")
    assert evaluate.main([option, f"a={tmp_path / 'predictions.csv'}"]) == 2
    assert f"{option} is for label maps; name one table of findings alone" in capsys.readouterr().err
