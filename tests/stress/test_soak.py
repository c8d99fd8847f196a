"""The soak: what grows is seen, what only jumps or wavers is not; and a short one is flat."""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np
import pytest

from lms3d.engine import tuning
from tests.stress import soak
from tests.stress.soak import Sample

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
    found = soak.growth(series(**growing))
    assert {figure for figure, (grown, allowed) in found.items() if grown > allowed} == growing.keys()
    assert [name for name in soak.ALLOWED if name in soak.judged(series(**growing)).wrong] == [*growing]


@pytest.mark.parametrize(("group", "count"), [("steps", 60), ("shapes", 8), ("errors", 3)])
def test_a_short_soak_is_flat(tmp_path, monkeypatch, group, count):
    """Memory takes longer to settle than a test. With eight shapes, five come after the others have begun to make room for them."""
    monkeypatch.setitem(soak.ALLOWED, "memory_mib", 200.0)
    monkeypatch.setitem(soak.ALLOWED, "step_seconds", 1e3)
    monkeypatch.setattr(tuning, "MOST_STEPS", 3)
    options = argparse.Namespace(output=tmp_path, steps=60, shapes=8, errors=3)
    assert soak.SOAK.cases(options, group) == [str(count)]
    result = soak.SOAK.run(options, group, str(count))
    assert not result.wrong
    assert "threads +0 (allowed: 0.5)" in result.note
    assert [path.name for path in (tmp_path / "soak").iterdir()] == [f"{group}-{count}.json"]  # and no swap folder
