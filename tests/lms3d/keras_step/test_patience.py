"""Who waits for a plan is told what for, and only who waits."""

import time

import pytest

import lms3d
from lms3d import console
from lms3d.keras_step import patience
from tests.lms3d.keras_step.test_estimate import BATCH, compiled, network


@pytest.mark.parametrize(("seconds", "told"), [(0.0, True), (300.0, False)])
def test_long_planning_is_told(monkeypatch, capsys, seconds, told):
    monkeypatch.setattr(patience, "SILENT_SECONDS", seconds)
    lms3d.estimate(compiled(network()), BATCH, memory_limit="1GiB", with_floor=False)
    assert ("lms: planning the train step for 1.00 GiB" in capsys.readouterr().out) == told


def test_of_several_ranks_one_talks(monkeypatch, capsys):
    monkeypatch.setattr(patience, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(console.OUT, "quiet", True)
    with patience.say_if_long("train", 1 << 30, ""):
        time.sleep(0.1)
    assert not capsys.readouterr().out
