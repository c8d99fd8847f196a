"""Crop, resize and the way back."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.data.brats.preprocess import Preprocessing, cube
from lms3d.data.errors import DataError
from lms3d.data.volumes.geometry import Box, Geometry, centred_box, foreground_box
from lms3d.data.volumes.preprocess import to_grid, to_native
from lms3d.data.volumes.resample import resize

shapes = st.tuples(*[st.integers(2, 20)] * 3)


def on_grid(images, truth, affine, how):
    """(images, truth, geometry) on the network's grid, with all channels in one array."""
    channels, small, geometry = to_grid(images, truth, affine, how)
    return np.stack(list(channels), axis=-1), small, geometry


def ramp(shape):
    """A linear function of the position, 0 to 1 from edge to edge on each axis."""
    axes = [(np.arange(size) + 0.5) / size for size in shape]
    return sum(weight * axis for weight, axis in zip((1, 2, 3), np.ix_(*axes), strict=True)).astype(np.float32)


@given(shapes, shapes)
@settings(deadline=None, max_examples=40)
def test_linear_resizing_keeps_a_linear_function_where_it_is(source, target):
    resized = resize(ramp(source), target)
    assert resized.shape == target
    assert resized.dtype == np.float32
    margins = [int(np.ceil(new / old / 2)) for old, new in zip(source, target, strict=True)]  # half an old voxel
    inside = [slice(margin, new - margin) for margin, new in zip(margins, target, strict=True)]
    np.testing.assert_allclose(resized[tuple(inside)], ramp(target)[tuple(inside)], atol=1e-4)
    assert resized.min() >= ramp(source).min() - 1e-5  # nothing is filled with zeros at the edges
    assert resized.max() <= ramp(source).max() + 1e-5


@given(shapes, st.integers(1, 3))
@settings(deadline=None, max_examples=30)
def test_enlarging_labels_by_a_whole_factor_and_back_is_exact(shape, factor):
    labels = np.random.default_rng(0).integers(0, 5, shape).astype(np.uint8)
    large = resize(labels, [factor * size for size in shape], "nearest")
    assert large.dtype == np.uint8
    np.testing.assert_array_equal(large, labels.repeat(factor, 0).repeat(factor, 1).repeat(factor, 2))
    np.testing.assert_array_equal(resize(large, shape, "nearest"), labels)


@given(shapes, shapes)
@settings(deadline=None, max_examples=30)
def test_symmetric_input_stays_symmetric(source, target):
    array = np.random.default_rng(1).random(source, np.float32)
    mirrored = resize(array[::-1, :, ::-1], target)
    np.testing.assert_allclose(mirrored, resize(array, target)[::-1, :, ::-1], atol=1e-4)


def test_channels_are_resized_alike_and_the_input_stays():
    array = np.random.default_rng(2).random((5, 6, 7, 3), np.float32)
    before = array.copy()
    together = resize(array, (8, 4, 9))
    for index in range(3):
        np.testing.assert_array_equal(together[..., index], resize(array[..., index], (8, 4, 9)))
    same = resize(array, (5, 6, 7))
    same += 1
    np.testing.assert_array_equal(array, before)
    assert resize(np.ones((2, 2, 2), bool), (4, 4, 4), "nearest").dtype == bool
    with pytest.raises(ValueError, match="cubic"):
        resize(array, (2, 2, 2), "cubic")


def test_foreground_has_a_border_of_one_voxel_and_stops_at_the_grid():
    images = np.zeros((10, 10, 10, 4), np.float32)
    images[3:5, 0:4, 8:10, 2] = -7
    assert foreground_box(images) == Box(lower=(2, 0, 7), upper=(6, 5, 10))
    images[..., 2] = 1e-6
    with pytest.raises(DataError, match="nothing but zeros"):
        foreground_box(images)


@given(shapes.filter(lambda shape: min(shape) > 4), st.integers(0, 2**31))
@settings(deadline=None, max_examples=20)
def test_a_cube_goes_back_to_its_place(shape, seed):
    rng = np.random.default_rng(seed)
    images = np.zeros((*shape, 4), np.float32)
    images[1:-1, 2:, 1:-2] = rng.random(images[1:-1, 2:, 1:-2].shape) + 1
    truth = (images[..., 0] > 1.5).astype(np.uint8) * 4
    grid, small, geometry = on_grid(images, truth, np.eye(4), cube(64))
    assert grid.shape == (64, 64, 64, 4)
    assert small is not None
    back = to_native(small, Geometry.from_json(json.loads(json.dumps(geometry.to_json()))))
    np.testing.assert_array_equal(back, truth)  # 64 is finer than these grids, so nothing is lost
    probabilities = to_native(grid, geometry)
    assert probabilities.shape == images.shape
    outside = np.ones(shape, bool)
    outside[tuple(map(slice, geometry.box.lower, geometry.box.upper))] = False
    assert not probabilities[outside].any()


BOX = Preprocessing(shape=(16, 32, 48), stretched=False)


@given(st.tuples(*[st.integers(8, 60)] * 3), st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_a_box_of_one_millimetre_changes_no_voxel(shape, seed):
    rng = np.random.default_rng(seed)
    images = np.zeros((*shape, 4), np.float32)
    images[2:-2, 3:-3, 1:-3] = rng.random(images[2:-2, 3:-3, 1:-3].shape) + 1
    truth = rng.integers(0, 5, shape).astype(np.uint8) * (images[..., 0] > 0)
    grid, small, geometry = on_grid(images, truth, np.eye(4), BOX)
    assert (grid.shape, small.shape) == ((*BOX.shape, 4), BOX.shape)
    brain, inside = foreground_box(images), geometry.box
    for axis in range(3):  # the brain is in the middle
        assert (
            abs(
                sum(brain.lower[axis : axis + 1] + brain.upper[axis : axis + 1])
                - inside.lower[axis]
                - inside.upper[axis]
            )
            <= 1
        )
    kept = inside.place(np.ones(BOX.shape, bool), shape)
    np.testing.assert_array_equal(to_native(small, geometry), truth * kept)
    np.testing.assert_array_equal(to_native(grid, geometry), images * kept[..., np.newaxis])
    if all(size <= whole for size, whole in zip(brain.shape, BOX.shape, strict=True)):
        np.testing.assert_array_equal(to_native(small, geometry), truth)  # nothing is cut off


def test_a_box_of_other_voxels_is_resampled_to_one_millimetre():
    images = np.zeros((20, 20, 20, 4), np.float32)
    images[5:15, 5:15, 5:15] = 1
    affine = np.diag([2.0, 1.0, 0.5, 1.0])
    _, _, geometry = to_grid(images, None, affine, BOX)
    assert geometry.box.shape == (8, 32, 96)
    spacing = np.linalg.norm(geometry.network_affine(BOX.shape)[:3, :3], axis=0)
    np.testing.assert_allclose(spacing, 1)


def test_a_cropped_box_reaches_beyond_the_grid_and_back():
    array = np.arange(24).reshape(2, 3, 4)
    box = centred_box(Box(lower=(0, 0, 0), upper=(2, 3, 4)), (6, 1, 4))
    assert box == Box(lower=(-2, 1, 0), upper=(4, 2, 4))
    cropped = box.crop(array)
    assert cropped.shape == (6, 1, 4)
    np.testing.assert_array_equal(cropped[2:4, 0], array[:, 1])
    assert not cropped[[0, 1, 4, 5]].any()
    np.testing.assert_array_equal(box.place(cropped, array.shape)[:, 1], array[:, 1])
    far = Box(lower=(5, 5, 5), upper=(7, 7, 7))
    assert not far.crop(array).any()
    assert not far.place(np.ones((2, 2, 2)), array.shape).any()


def test_network_affine_puts_corners_on_box_corners():
    geometry = Geometry(
        shape=(40, 40, 40),
        affine=tuple(map(tuple, np.diag([2.0, 1.0, 1.0, 1.0]))),
        box=Box(lower=(5, 0, 0), upper=(25, 40, 10)),
    )
    to_mm = geometry.network_affine((40, 40, 40))
    np.testing.assert_allclose(to_mm @ [-0.5, -0.5, -0.5, 1], [9, -0.5, -0.5, 1])
    np.testing.assert_allclose(to_mm @ [39.5, 39.5, 39.5, 1], [49, 39.5, 9.5, 1])


def test_anti_aliasing_removes_detail_that_the_grid_cannot_hold_and_nothing_else():
    stripes = np.zeros((64, 8, 8), np.float32)
    stripes[::3] = 1
    plain, smooth = (resize(stripes, (24, 8, 8), anti_alias=on) for on in (False, True))
    assert smooth.std() < plain.std() / 2  # the stripes alias without it
    assert smooth.mean() == pytest.approx(stripes.mean(), abs=0.02)
    larger = (96, 8, 8)
    np.testing.assert_array_equal(resize(stripes, larger, anti_alias=True), resize(stripes, larger))
    labels = stripes.astype(np.uint8)
    np.testing.assert_array_equal(
        resize(labels, (24, 8, 8), "nearest", anti_alias=True), resize(labels, (24, 8, 8), "nearest")
    )


def test_the_truth_has_no_say_in_the_crop():
    images = np.zeros((12, 12, 12, 4), np.float32)
    images[4:8, 4:8, 4:8] = 1
    everywhere = np.ones((12, 12, 12), np.uint8)
    with_truth, _, a = on_grid(images, everywhere, np.eye(4), cube(16))
    without, nothing, b = on_grid(images, None, np.eye(4), cube(16))
    assert a == b
    assert nothing is None
    np.testing.assert_array_equal(with_truth, without)


@pytest.mark.parametrize(("found", "advised"), [(0, 16), (8, 16), (100, 96), (144.0 - 1, 144), (-16, 16)])
def test_resolutions_that_do_not_halve_four_times(found, advised):
    with pytest.raises(DataError, match=rf"--resolution: found {found:g}.*multiple of 16.*use {advised}"):
        cube(int(found))
    assert cube(advised).shape == (advised,) * 3


def test_n4_flattens_a_bias_field_and_leaves_flair_and_the_background():
    rng = np.random.default_rng(0)
    images = np.zeros((48, 48, 40, 4), np.float32)
    position = np.linspace(-1, 1, 40)[:, None, None]
    images[4:-4, 4:-4, 4:-4] = 100 * (1 + 0.02 * rng.standard_normal((40, 40, 32, 4)))
    images[4:-4, 4:-4, 4:-4] *= np.exp(0.3 * position)[..., None]
    how = cube(48, n4=True)
    corrected = np.stack([how.corrected(images[..., index], index) for index in range(4)], axis=-1)
    np.testing.assert_array_equal(corrected[..., 2], images[..., 2])
    assert not corrected[images == 0].any()
    inside = (slice(6, -6),) * 3
    for channel in (0, 1, 3):
        assert corrected[(*inside, channel)].std() < 0.4 * images[(*inside, channel)].std()
