"""The baseline as a command, and its file beside a comparison."""

import json

import pytest

from lms3d.data import split
from lms3d.experiments import intensity_baseline
from lms3d.experiments.harness import baseline
from tests.data.small_data import random_case, write_case


@pytest.fixture
def brains(tmp_path):
    for number in range(1, 7):
        arrays = random_case(number)
        arrays["truth"][(arrays["truth"] == 4) & (number == 6)] = 0
        write_case(tmp_path / "set" / f"BraTS20_Training_{number:03d}", arrays)
    return tmp_path / "set"


def test_the_command_scores_the_validation_cases_of_a_split(brains, tmp_path, capsys):
    ids = [f"BraTS20_Training_{number:03d}" for number in range(1, 7)]
    split.save(split.Split(training=tuple(ids[:3]), validation=tuple(ids[3:])), tmp_path / "split.json")
    words = ["--data", str(brains), "--split", str(tmp_path / "split.json"), "--output", str(tmp_path / "out")]
    assert intensity_baseline.main(words) == 0
    found = json.loads((tmp_path / "out" / baseline.FILE).read_text())
    assert found["tested"] == ids[3:]
    assert [len(values) for values in found["dice"].values()] == [3, 3, 3]
    assert found["dice"]["ET"][2] in (0.0, 1.0)  # the last case has none
    assert "| WT | 3 | 0." in capsys.readouterr().out


def test_it_is_measured_once_and_again_for_other_cases(brains, tmp_path, monkeypatch):
    asked = []

    def measure(data, labels, training, tested):
        asked.append((training, tested))
        return {"WT": [0.5, float("nan"), 0.25]}

    monkeypatch.setattr(baseline, "_measure", measure)
    for tested in (["b", "c"], ["c", "b"], ["d"]):
        found = baseline.measured(brains, None, ["a"], tested, tmp_path)
    assert asked == [(["a"], ["b", "c"]), (["a"], ["d"])]
    (row,) = baseline.rows(found)
    assert row.cells() == ["WT", "2", "0.375", "", ""]
