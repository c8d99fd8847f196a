"""The rule by which networks halve volumes, and networks whose strides and kernels differ by axis."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms3d import models
from lms3d.models import resenc, topology
from lms3d.tasks.packages import network

FLAT, ALL = (2, 2, 1), (2, 2, 2)


def test_flat_voxels_become_cubes_first():
    found = topology.planned((320, 320, 20), (0.7, 0.7, 5.0))
    assert found.strides == ((1, 1, 1), FLAT, FLAT, ALL, ALL, FLAT, FLAT)
    assert found.kernels == ((3, 3, 1), (3, 3, 1), *[(3, 3, 3)] * 5)
    assert topology.divisors(found) == (64, 64, 4)


def test_cubes_are_halved_down_to_four_voxels():
    assert topology.planned((128, 128, 128)) == topology.regular(6)
    assert topology.planned((128, 128, 128), levels=3) == topology.regular(3)


def test_an_odd_number_is_never_halved_nor_one_axis_alone_below_six():
    assert topology.planned((100, 96, 40)).strides == ((1, 1, 1), ALL, ALL, (1, 2, 2), (1, 2, 1))
    with pytest.raises(ValueError, match="found a volume of 8x7x7 voxels"):
        topology.planned((8, 7, 7))
    with pytest.raises(ValueError, match="found a volume of 9x15x6 voxels; expected even numbers, at least 8"):
        topology.planned((9, 15, 6))


SIDES = st.integers(1, 400)
LENGTHS = st.floats(0.1, 10)


@given(st.tuples(SIDES, SIDES, SIDES), st.tuples(LENGTHS, LENGTHS, LENGTHS), st.sampled_from([0.001, 1000.0]))
def test_every_shape_can_be_halved_as_planned_whatever_the_unit(shape, spacing, unit):
    try:
        found = topology.planned(shape, spacing)
    except ValueError:
        return
    for size, by in zip(shape, topology.divisors(found), strict=True):
        assert size % by == 0
        assert by == 1 or size // by >= topology.SMALLEST
    assert all(kernel[axis] == 3 for kernel, stride in zip(found.kernels, found.strides[1:], strict=False)
               for axis in range(3) if stride[axis] == 2 and spacing[axis] < 2 * min(spacing))  # fmt: skip
    assert topology.planned(shape, [mm * unit for mm in spacing]).levels == found.levels


@pytest.mark.parametrize("name", models.names(models.VOLUMES))
def test_a_network_for_flat_voxels_learns_from_any_channels(name):
    given = {"input_shape": (16, 16, 8, 2), "spacing_mm": (1.0, 1.0, 2.5), "levels": 3}
    small = {**models.NETWORKS[name].sized(3), "filters": (2, 3, 4)}
    small |= {"blocks": (1, 1, 2)} if "blocks" in small else {}
    model = models.build(name, **given, outputs=7, activation="softmax", **small)
    x = np.random.default_rng(0).normal(size=(1, 16, 16, 8, 2)).astype(np.float32)
    y = model(x).numpy()
    assert y.shape == (1, 16, 16, 8, 7)
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-5)
    options = network.build_options(name, {variable.path: variable.shape for variable in model.weights})
    assert options["filters"] == [2, 3, 4]
    assert options["kernels"] == [[3, 3, 1], [3, 3, 3], [3, 3, 3]]
    again = models.build(name, **given, outputs=7, activation="softmax", **options)
    assert [v.shape for v in again.weights] == [v.shape for v in model.weights]


@pytest.mark.parametrize("name", ["isensee2017", "resenc"])
def test_each_head_of_softmaxes_sums_to_one(name):
    model = models.build(
        name, input_shape=(16, 16, 16, 1), outputs=3, filters=(2, 2, 2, 2), separate_heads=True, activation="softmax",
        **({"blocks": (1, 1, 1, 1)} if name == "resenc" else {}),
    )  # fmt: skip
    y = model(np.random.default_rng(0).normal(size=(1, 16, 16, 16, 1)).astype(np.float32)).numpy()
    assert y.shape[-1] == 9
    for head in np.split(y, 3, axis=-1):
        np.testing.assert_allclose(head.sum(-1), 1, rtol=1e-5)
    shape, weights = (16, 16, 16, 1), network.weights_of(model)
    alone = network.needed(name, shape, 3, weights, "float32", activation="softmax")
    deeper = {"head1_conv/kernel", "head1_conv/bias", "head2_conv/kernel", "head2_conv/bias"}
    assert set(weights) - set(alone) == (deeper if name == "resenc" else set())  # isensee2017 adds its heads up
    blocks = y[0, ..., 8].reshape(4, 4, 4, 4, 4, 4)
    assert (blocks == blocks[:, :1, :, :1, :, :1]).all()  # the deepest head has a quarter of the resolution


def test_presets_grow():
    assert resenc.sized(6) == {"filters": (32, 64, 128, 256, 320, 320), "blocks": (1, 3, 4, 6, 6, 6)}
    counts = {preset: math.prod(resenc.sized(4, preset)["filters"]) for preset in ("S", "M", "L", "XL")}
    assert sorted(counts, key=counts.__getitem__) == ["S", "M", "L", "XL"]
    assert max(resenc.sized(6, "S")["blocks"]) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strides": [(1, 1, 1), (2, 2, 3)]}, "expected 1 or 2 on each axis"),
        ({"strides": [(1, 1, 1)]}, "expected one of each for every level"),
        ({"activation": "relu"}, "expected one of sigmoid, softmax"),
    ],
)
def test_wrong_options_are_told(options, says):
    with pytest.raises(ValueError, match=says):
        models.build("unet3d", input_shape=(24, 24, 24, 1), filters=(2, 2), **options)
