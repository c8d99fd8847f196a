"""Distortions change samples only inside the brain, image and truth alike, and in the same way for the same seed."""

import numpy as np
import pytest

from lms3d.data.brats.distortions import DISTORTIONS, Sample, check_names, distort
from lms3d.data.errors import DataError

SHAPE = (24, 20, 28)
MOVING = ("elastic", "scale")


@pytest.fixture
def sample():
    random = np.random.default_rng(0)
    brain = np.zeros(SHAPE, bool)
    brain[4:-4, 4:-4, 4:-4] = True
    image = np.where(brain[..., None], random.normal(size=(*SHAPE, 4)), 0).astype(np.float32)
    truth = np.zeros(SHAPE, np.uint8)
    truth[8:14, 8:12, 10:18] = 4
    image[truth == 4] += 5
    return Sample(image=image, truth=truth, zero=np.full(4, 3.0, np.float32), background=np.zeros(4, np.float32))


@pytest.mark.parametrize("name", DISTORTIONS)
def test_types_and_shapes_stay_and_a_seed_decides(sample, name):
    before = sample.image.copy()
    made = [DISTORTIONS[name].apply(sample, np.random.default_rng(s)) for s in (1, 1, 2)]
    for one in made:
        assert (one.image.dtype, one.image.shape) == (np.float32, (*SHAPE, 4))
        assert (one.truth.dtype, one.truth.shape) == (np.uint8, SHAPE)
        assert np.isfinite(one.image).all()
    np.testing.assert_array_equal(made[0].image, made[1].image)
    assert (made[0].image != made[2].image).any()
    assert (made[0].image != before).any()
    np.testing.assert_array_equal(sample.image, before)


@pytest.mark.parametrize("name", sorted(set(DISTORTIONS) - set(MOVING)))
def test_intensities_change_inside_the_brain_alone(sample, name):
    made = DISTORTIONS[name].apply(sample, np.random.default_rng(1))
    assert not made.image[~sample.brain[..., 0]].any()
    np.testing.assert_array_equal(made.truth, sample.truth)


@pytest.mark.parametrize("name", MOVING)
def test_image_and_truth_move_together(sample, name):
    for seed in range(5):
        made = DISTORTIONS[name].apply(sample, np.random.default_rng(seed))
        assert set(np.unique(made.truth)) <= {0, 4}
        bright = made.image.mean(axis=-1) > 2.5
        overlap = 2 * (bright & (made.truth == 4)).sum() / (bright.sum() + (made.truth == 4).sum())
        assert overlap > 0.8


def test_a_scale_keeps_the_middle_and_changes_the_volume(sample):
    volumes = [int(DISTORTIONS["scale"].apply(sample, np.random.default_rng(s)).brain.sum()) for s in range(12)]
    assert min(volumes) < sample.brain.sum() < max(volumes)


def test_gamma_keeps_mean_and_deviation(sample):
    made = DISTORTIONS["gamma"].apply(sample, np.random.default_rng(1))
    brain = sample.brain[..., 0]
    np.testing.assert_allclose(made.image[brain].mean(axis=0), sample.image[brain].mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(made.image[brain].std(axis=0), sample.image[brain].std(axis=0), rtol=1e-3)


def test_a_bias_field_multiplies_what_the_scanner_gave(sample):
    made = DISTORTIONS["bias-field"].apply(sample, np.random.default_rng(1))
    brain = sample.brain[..., 0]
    fields = ((made.image + sample.zero) / (sample.image + sample.zero))[brain]
    np.testing.assert_allclose(fields[:, 0], fields[:, 1], rtol=1e-2)
    assert np.ptp(fields[:, 0]) > 0.05


def test_each_changes_its_share_and_one_more_changes_no_other(sample):
    names = ("noise", "gamma")
    changed = [distort(sample, ("noise",), 3, g).image is not sample.image for g in range(400)]
    assert np.mean(changed) == pytest.approx(DISTORTIONS["noise"].chance, abs=0.06)
    only = next(g for g in range(400) if changed[g] and distort(sample, ("gamma",), 3, g).image is sample.image)
    np.testing.assert_array_equal(distort(sample, names, 3, only).image, distort(sample, ("noise",), 3, only).image)


def test_names():
    assert check_names(("all",)) == tuple(DISTORTIONS)
    assert check_names(()) == ()
    with pytest.raises(DataError, match="--distort: found 'blur'; expected all, or a list of elastic"):
        check_names(("noise", "blur"))


@pytest.mark.parametrize("name", DISTORTIONS)
def test_with_the_case_studys_figures_the_background_keeps_its_value(sample, name):
    """With global figures the background is not 0, but shifted like everything."""
    shift = np.full(4, -2.0, np.float32)
    shifted = Sample(image=sample.image + shift, truth=sample.truth, zero=-shift, background=shift)
    made = DISTORTIONS[name].apply(shifted, np.random.default_rng(1))
    corner = made.image[0, 0, 0]
    np.testing.assert_array_equal(corner, shift)
    assert made.image.dtype == np.float32
