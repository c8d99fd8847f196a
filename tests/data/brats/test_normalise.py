"""Z-scores of each brain, and the case study's figures of the training subjects."""

import json

import numpy as np
import pytest

from lms3d.data.brats import normalise
from lms3d.data.errors import DataError


def test_global_figures_are_means_of_subject_statistics(small_cache):
    training = small_cache.ids[:3]
    fitted = normalise.fit("global", small_cache, training)
    images = [small_cache.image(case_id).astype(np.float64) for case_id in training]
    np.testing.assert_allclose(fitted.mean, np.mean([image.mean((0, 1, 2)) for image in images], axis=0), rtol=1e-6)
    np.testing.assert_allclose(fitted.std, np.mean([image.std((0, 1, 2)) for image in images], axis=0), rtol=1e-6)
    assert normalise.fit("global", small_cache, reversed(training)) == fitted
    assert normalise.fit("global", small_cache, small_cache.ids) != fitted  # so other cases had no part in it


def test_globally_all_cases_are_shifted_alike(small_cache):
    fitted = normalise.fit("global", small_cache, small_cache.ids)
    raw = small_cache.image(small_cache.ids[0])
    applied = normalise.image(fitted, small_cache, small_cache.ids[0])
    assert applied.dtype == np.float32
    np.testing.assert_allclose(applied * fitted.std + fitted.mean, raw, atol=1e-2)
    pooled = np.stack([normalise.image(fitted, small_cache, case_id) for case_id in small_cache.ids])
    np.testing.assert_allclose(pooled.mean((0, 1, 2, 3)), 0, atol=1e-5)


def test_per_case_each_brain_has_mean_0_and_deviation_1_and_the_background_stays_0(small_cache):
    fitted = normalise.fit("case", small_cache, [])
    for case_id in small_cache.ids:
        applied, raw = normalise.image(fitted, small_cache, case_id), small_cache.image(case_id)
        brain = raw.any(axis=-1)
        assert 0 < brain.mean() < 1
        assert not applied[~brain].any()
        np.testing.assert_allclose(applied[brain].mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(applied[brain].std(axis=0), 1, rtol=1e-3)


@pytest.mark.parametrize("kind", normalise.KINDS)
def test_json(small_cache, kind):
    fitted = normalise.fit(kind, small_cache, small_cache.ids)
    assert normalise.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


def test_a_run_from_before_there_were_kinds_is_global():
    assert normalise.from_json({"channels": [], "mean": [1, 2, 3, 4], "std": [1, 1, 1, 2]}).mean == (1, 2, 3, 4)


def test_nothing_to_fit(small_cache):
    with pytest.raises(DataError, match="training cases: found none"):
        normalise.fit("global", small_cache, [])
    with pytest.raises(DataError, match="--normalisation: found 'minmax'; expected case or global"):
        normalise.fit("minmax", small_cache, small_cache.ids)
