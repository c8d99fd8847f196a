"""The soak: what grows is seen, what only jumps or wavers is not; and a short one is flat."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from experiments import torture_soak
from experiments.torture_soak import Sample
from lms3d.engine import tuning

FLAT = Sample(steps=0, memory_mib=800.0, open_files=8, threads=14, swap_files=12, step_seconds=0.01)


def series(**growing: float) -> list[Sample]:
    """90 samples with noise, of which some figures grow by so much in all, and one in ten is far off."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(90):
        noise = {"memory_mib": rng.normal(0, 3), "step_seconds": rng.normal(0, 0.001) + (number % 10 == 0) * 0.1}
        grown = {name: getattr(FLAT, name) + by * number / 60 for name, by in growing.items()}
        values = {name: grown.get(name, getattr(FLAT, name)) + noise.get(name, 0.0) for name in {*noise, *grown}}
        found.append(dataclasses.replace(FLAT, steps=10 * number, **values))
    return found


@pytest.mark.parametrize(
    "growing", [{}, {"memory_mib": 40}, {"open_files": 2}, {"threads": 1}, {"swap_files": 3}, {"step_seconds": 0.004}]
)
def test_what_grows_is_seen(growing):
    found = torture_soak.trends("steps", series(**growing))
    assert {trend.figure for trend in found if not trend.flat} == growing.keys()


def test_a_short_soak_is_flat_and_its_samples_are_not_made_twice(tmp_path, monkeypatch, capsys):
    """Of threads, files and swap files; memory takes longer to settle than a test. Of eight shapes five come after the others
    have begun to make room for them."""
    monkeypatch.setitem(torture_soak.ALLOWED, "memory_mib", 200.0)
    monkeypatch.setitem(torture_soak.ALLOWED, "step_share", 1e3)
    monkeypatch.setattr(torture_soak, "_apart", torture_soak.samples)
    monkeypatch.setattr(tuning, "MOST_STEPS", 3)
    arguments = ["--steps", "60", "--shapes", "8", "--errors", "3", "--output", str(tmp_path)]
    assert torture_soak.main(arguments) == 0
    table = capsys.readouterr().out
    assert table.count("\n| ") == 1 + 15
    monkeypatch.setattr(torture_soak, "_apart", None)
    assert torture_soak.main(arguments) == 0
    assert capsys.readouterr().out == table
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}  # no swap folder
    monkeypatch.setitem(torture_soak.ALLOWED, "memory_mib", -1e6)
    monkeypatch.setattr(torture_soak, "_apart", lambda *_: series())  # what was not flat is run again
    assert torture_soak.main(arguments) == 1
    assert "it grows: steps: memory_mib" in capsys.readouterr().err
