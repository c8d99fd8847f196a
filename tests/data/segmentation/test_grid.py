"""Spacing by nnU-Net's rule, and the grids that follow."""

import tracemalloc

import numpy as np
import pytest

from lms3d.data.segmentation import layouts, spacing
from lms3d.data.segmentation.grid import Grid
from lms3d.data.segmentation.spacing import Sizes
from lms3d.data.volumes import cache, entries
from lms3d.data.volumes.preprocess import to_native
from tests.data.small_volumes import CT, labels_of, write_nnunet


def sizes(*rows, shape=(100, 100, 20)):
    return Sizes(shapes=np.array([shape] * len(rows)), spacings_mm=np.array(rows))


def test_the_target_is_the_median():
    assert spacing.target(sizes((1, 1, 2), (1, 1, 1), (2, 2, 2.5))) == (1, 1, 2)


def test_thick_slices_are_resampled_to_thin_ones():
    thick = sizes(*[(1, 1, 5)] * 9, (1, 1, 3))
    assert spacing.target(thick) == (1, 1, pytest.approx(np.percentile([5] * 9 + [3], 10)))
    assert spacing.target(sizes(*[(1, 1, 5)] * 5, *[(1, 1, 0.5)] * 4)) == (1, 1, 1), "no finer than the others"
    assert spacing.target(sizes(*[(1, 1, 5)] * 9, (1, 1, 3), shape=(100, 100, 60)))[2] == 5, "as many slices as pixels"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return layouts.find(write_nnunet(tmp_path_factory.mktemp("grids"), cases=2)).data_set


def built(found, grid, folder):
    return cache.build(found.cases, found.schema, grid, directory=folder, workers=1)


def test_each_case_may_have_a_shape_of_its_own(found, tmp_path):
    volumes = built(found, Grid(shape=None, stretched=False, spacing_mm=(2.0, 1.0, 1.0)), tmp_path)
    assert volumes.shape_of("case_0") == (10, 16, 24)
    assert volumes.image("case_0").shape == (10, 16, 24, 1)
    assert volumes.truth("case_0").shape == (10, 16, 24)
    with pytest.raises(ValueError, match="shape of its own"):
        _ = volumes.shape
    native = to_native(volumes.truth("case_0"), volumes.geometry("case_0"))
    assert native.shape == (20, 16, 12)
    assert (native == labels_of((1, 2))).mean() > 0.95


def test_beyond_a_scan_lies_its_smallest_value(found, tmp_path):
    volumes = built(found, Grid(shape=(32, 16, 16), stretched=False, spacing_mm=(1.0, 1.0, 2.0)), tmp_path)
    image = volumes.image("case_0")
    assert image[0, 0, 0, 0] == pytest.approx(image.min(), abs=0.1)
    assert (volumes.truth("case_0")[:6] == 0).all()
    assert volumes.cut_off() == []


def test_grids_have_caches_of_their_own(found, tmp_path):
    grids = [
        Grid(shape=(32, 32, 32)), Grid(shape=(32, 32, 32), stretched=False, spacing_mm=(1.0, 1.0, 3.0)),
        Grid(shape=(32, 32, 32), stretched=False, spacing_mm=(1.0, 3.0, 3.0)),
        Grid(shape=None, stretched=False, spacing_mm=(1.0, 1.0, 3.0)), Grid(shape=(32, 32, 32), anti_alias=True),
    ]  # fmt: skip
    assert len({grid.name for grid in grids}) == len(grids)
    for grid in grids:
        assert Grid.from_json(grid.to_json()) == grid


@pytest.mark.parametrize(
    "value", [None, {}, {"shape": [1, 2]}, {**Grid(shape=None).to_json(), "spacing_mm": [0, 1, 1]}]
)
def test_a_damaged_grid_is_refused(value):
    with pytest.raises(ValueError, match="found preprocessing"):
        Grid.from_json(value)


def test_a_case_is_prepared_in_a_few_times_its_own_size(tmp_path):
    """Float64 copies of a whole case would take it above nine times."""
    about = {**CT, "channel_names": {"0": "CT", "1": "PET"}}
    (case, *_), schema = layouts.find(write_nnunet(tmp_path, about, cases=1, shape=(96, 64, 64))).data_set
    grid = Grid(shape=None, stretched=False, spacing_mm=(1.0, 1.0, 2.0))
    tracemalloc.start()
    try:
        entries.make(case, schema, grid, tmp_path / "entry")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * np.zeros((96, 64, 64, 2), np.float32).nbytes
