"""Patches lie inside the volume, hold tumours often enough, and windows give the whole back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.data.errors import DataError
from lms3d.data.volumes import patches

shapes = st.tuples(*[st.integers(4, 14)] * 3)


@given(shapes, st.integers(0, 2**31), st.data())
@settings(deadline=None)
def test_random_patches_lie_inside(shape, seed, data):
    patch = tuple(data.draw(st.integers(1, size)) for size in shape)
    random = np.random.default_rng(seed)
    truth = (random.random(shape) < 0.02).astype(np.uint8)
    box = patches.random_patch(truth, patch, random)
    assert box.shape == patch
    assert min(box.lower) >= 0
    assert all(high <= size for high, size in zip(box.upper, shape, strict=True))


def test_a_third_of_the_patches_surely_holds_tumour():
    truth = np.zeros((64, 64, 64), np.uint8)
    truth[1, 62, 30] = 1  # by chance a patch of 8 would find it once in thousands
    random = np.random.default_rng(0)
    hits = [patches.random_patch(truth, (8, 8, 8), random).crop(truth).any() for _ in range(300)]
    assert np.mean(hits) == pytest.approx(1 / 3, abs=0.08)


def test_windows_overlap_by_half_and_cover_the_ends():
    found = patches.windows((20, 8, 8), (8, 8, 8))
    assert [box.lower[0] for box in found] == [0, 4, 8, 12]
    assert patches.windows((8, 8, 8), (8, 8, 8))[0].upper == (8, 8, 8)
    assert patches.window_count((20, 8, 8), (8, 8, 8)) == 4
    assert patches.window_count((20, 16, 3), (8, 8, 8)) == 12, "a volume that is smaller lies in one"


@given(shapes, st.data())
@settings(deadline=None, max_examples=40)
def test_the_weights_of_windows_are_summed_plane_by_plane(shape, data):
    patch = tuple(data.draw(st.integers(2, size)) for size in shape)
    whole = np.zeros((*shape, 1), np.float32)
    for box in patches.windows(shape, patch):
        box.crop(whole)[...] += patches.weights(patch)
    start = data.draw(st.integers(0, shape[2] - 1))
    stop = data.draw(st.integers(start + 1, shape[2]))
    np.testing.assert_array_equal(patches.sum_of_weights(shape, patch, start, stop), whole[:, :, start:stop])


def test_a_patch_larger_than_the_volume_is_refused():
    with pytest.raises(DataError, match="--patch: found 16x16x16; expected at most the volume, 8x32x32"):
        patches.windows((8, 32, 32), (16, 16, 16))
