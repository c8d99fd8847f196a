"""Patches lie inside the volume, hold tumours often enough, and windows give the whole back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.data.brats import patches
from lms3d.data.errors import DataError

shapes = st.tuples(*[st.integers(4, 14)] * 3)


@given(shapes, st.integers(0, 2**31), st.data())
@settings(deadline=None)
def test_random_and_central_patches_lie_inside(shape, seed, data):
    patch = tuple(data.draw(st.integers(1, size)) for size in shape)
    random = np.random.default_rng(seed)
    truth = (random.random(shape) < 0.02).astype(np.uint8)
    for box in (patches.random_patch(truth, patch, random), patches.central_patch(truth, patch)):
        assert box.shape == patch
        assert min(box.lower) >= 0
        assert all(high <= size for high, size in zip(box.upper, shape, strict=True))


def test_a_third_of_the_patches_surely_holds_tumour():
    truth = np.zeros((64, 64, 64), np.uint8)
    truth[1, 62, 30] = 1  # by chance a patch of 8 would find it once in thousands
    random = np.random.default_rng(0)
    hits = [patches.random_patch(truth, (8, 8, 8), random).crop(truth).any() for _ in range(300)]
    assert np.mean(hits) == pytest.approx(1 / 3, abs=0.08)


def test_the_central_patch_is_around_the_tumour():
    truth = np.zeros((32, 32, 32), np.uint8)
    truth[20:24, 8:12, 3:5] = 4
    box = patches.central_patch(truth, (8, 8, 8))
    assert box.lower == (18, 6, 0)
    assert patches.central_patch(np.zeros_like(truth), (8, 8, 8)).lower == (12, 12, 12)


@given(shapes, st.data())
@settings(deadline=None, max_examples=40)
def test_what_does_not_depend_on_the_surroundings_comes_back_exactly(shape, data):
    patch = tuple(data.draw(st.integers(2, size)) for size in shape)
    image = np.random.default_rng(1).random((*shape, 2), np.float32)
    found = patches.sliding_window(lambda part: part[..., :1] * 2, image, patch)
    np.testing.assert_allclose(found, image[..., :1] * 2, rtol=1e-5)


def test_windows_overlap_by_half_and_cover_the_ends():
    found = patches.windows((20, 8, 8), (8, 8, 8))
    assert [box.lower[0] for box in found] == [0, 4, 8, 12]
    assert patches.windows((8, 8, 8), (8, 8, 8))[0].upper == (8, 8, 8)


def test_the_middle_of_a_window_counts_most():
    """The window whose middle is nearer has more weight in an overlap."""
    calls = iter([0.0, 1.0])

    def network(part):
        return np.full((*part.shape[:3], 1), next(calls), np.float32)

    found = patches.sliding_window(network, np.zeros((12, 8, 8, 1), np.float32), (8, 8, 8))
    middle = found[:, 4, 4, 0]
    assert (np.diff(middle) >= 0).all()
    assert middle[4] < 0.1
    assert middle[7] > 0.9


def test_a_patch_larger_than_the_volume_is_refused():
    with pytest.raises(DataError, match="--patch: found 16x16x16; expected at most the volume, 8x32x32"):
        patches.windows((8, 32, 32), (16, 16, 16))
