"""Statistics of training subjects only."""

import json

import numpy as np
import pytest

from data.brats import normalise
from data.errors import DataError


def test_means_of_subject_statistics(small_cache):
    training = small_cache.ids[:3]
    fitted = normalise.fit(small_cache, training)
    images = [small_cache.image(case_id).astype(np.float64) for case_id in training]
    np.testing.assert_allclose(fitted.mean, np.mean([image.mean((0, 1, 2)) for image in images], axis=0), rtol=1e-6)
    np.testing.assert_allclose(fitted.std, np.mean([image.std((0, 1, 2)) for image in images], axis=0), rtol=1e-6)
    assert normalise.fit(small_cache, reversed(training)) == fitted
    assert normalise.fit(small_cache, small_cache.ids) != fitted  # so other cases had no part in it


def test_apply(small_cache):
    fitted = normalise.fit(small_cache, small_cache.ids)
    image = small_cache.image(small_cache.ids[0])
    applied = fitted.apply(image)
    assert applied.dtype == np.float32
    np.testing.assert_allclose(applied * fitted.std + fitted.mean, image, atol=1e-2)
    pooled = np.stack([fitted.apply(small_cache.image(case_id)) for case_id in small_cache.ids])
    np.testing.assert_allclose(pooled.mean((0, 1, 2, 3)), 0, atol=1e-5)


def test_json(small_cache):
    fitted = normalise.fit(small_cache, small_cache.ids)
    assert normalise.Normalisation.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


def test_nothing_to_fit(small_cache):
    with pytest.raises(DataError, match="training cases: found none"):
        normalise.fit(small_cache, [])
