"""The smallest limits by resolution: three for each, in order, as a table and a figure."""

from __future__ import annotations

import csv
from functools import partial

import pytest

from lms3d.experiments import floors
from lms3d.experiments.floors import Floors

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(in_fresh_process):
    return in_fresh_process(_predicted)


def _predicted() -> list[Floors]:
    from lms3d import models

    models.build = partial(
        models.build, filters=(16, 32, 64)
    )  # floors of three levels are in the same order as with five
    return list(floors.predicted("unet3d", [32, 48]))


def test_slabs_need_less_than_whole_tensors_and_these_less_than_no_lms(found):
    for one in found:
        assert one.slab_bytes <= one.whole_bytes < one.without_bytes
    assert found[1].slab_bytes < found[1].whole_bytes


def test_a_table_and_a_figure(found, tmp_path):
    floors.write(found, tmp_path)
    rows = list(csv.DictReader((tmp_path / "floors.csv").open()))
    assert [int(row["resolution"]) for row in rows] == [32, 48]
    assert int(rows[1]["slab_bytes"]) == found[1].slab_bytes
    assert (tmp_path / "floors.png").stat().st_size > 10_000
