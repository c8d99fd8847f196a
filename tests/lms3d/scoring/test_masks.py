"""Scores against tables worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lms3d.scoring import masks
from lms3d.scoring.keras_dice import RegionDice

REGIONS = {"WT": (1, 2, 4), "TC": (1, 4), "ET": (4,)}


def mask(*bits: int) -> np.ndarray:
    return np.array(bits, bool).reshape(1, 2, -1)


@pytest.mark.parametrize(
    ("prediction", "truth", "dice", "sensitivity", "specificity"),
    [
        (mask(1, 1, 0, 0), mask(1, 1, 0, 0), 1.0, 1.0, 1.0),
        (mask(1, 0, 0, 0), mask(1, 1, 0, 0), 2 / 3, 0.5, 1.0),
        (mask(1, 1, 1, 0), mask(1, 1, 0, 0), 4 / 5, 1.0, 0.5),
        (mask(0, 0, 1, 1), mask(1, 1, 0, 0), 0.0, 0.0, 0.0),
        (mask(0, 0, 0, 0), mask(0, 0, 0, 0), 1.0, 1.0, 1.0),
        (mask(1, 0, 0, 0), mask(0, 0, 0, 0), 0.0, 1.0, 0.75),
        (mask(0, 0, 0, 0), mask(1, 0, 0, 0), 0.0, 0.0, 1.0),
    ],
)
def test_table_of_overlaps(prediction, truth, dice, sensitivity, specificity):
    assert masks.dice(prediction, truth) == pytest.approx(dice)
    assert masks.sensitivity(prediction, truth) == pytest.approx(sensitivity)
    assert masks.specificity(prediction, truth) == pytest.approx(specificity)


def region_dice(prediction: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    predicted, true = masks.region_masks(prediction, REGIONS), masks.region_masks(truth, REGIONS)
    return {name: masks.dice(predicted[name], true[name]) for name in REGIONS}


def test_regions_are_unions_of_labels():
    truth = np.array([0, 1, 2, 4]).reshape(1, 2, 2)
    prediction = np.array([0, 4, 2, 4]).reshape(1, 2, 2)
    assert region_dice(prediction, truth) == {"WT": 1.0, "TC": 1.0, "ET": pytest.approx(2 / 3)}


def cube(*corner: int) -> np.ndarray:
    """A 4x4x4 block in 20x20x20 voxels that starts at `corner`."""
    result = np.zeros((20, 20, 20), bool)
    result[tuple(slice(start, start + 4) for start in corner)] = True
    return result


def test_hausdorff_of_shifted_blocks():
    assert masks.hausdorff95(cube(3, 3, 3), cube(3, 3, 3)) == 0
    assert masks.hausdorff95(cube(3, 3, 3), cube(6, 3, 3)) == 3
    assert masks.hausdorff95(cube(3, 3, 3), cube(6, 3, 3), (2, 1, 1)) == 6


def test_hausdorff_where_a_mask_is_empty():
    nothing = np.zeros((20, 20, 20), bool)
    assert masks.hausdorff95(nothing, nothing) == 0
    assert masks.hausdorff95(cube(1, 1, 1), nothing) == masks.hausdorff95(nothing, cube(1, 1, 1)) == 373.13


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.stack([labels == value for value in (1, 2, 4)], axis=-1).astype(np.uint8)


label_maps = arrays.arrays(np.uint8, (2, 2, 3, 2), elements=st.sampled_from([0, 1, 2, 4]))


@settings(max_examples=20, deadline=None)
@given(label_maps, label_maps)
def test_keras_metric_is_the_mean_of_the_numpy_one(prediction, truth):
    channels = {"WT": (0, 1, 2), "TC": (0, 2), "ET": (2,)}
    for region, indices in channels.items():
        metric = RegionDice(indices, name=region)
        for sample in range(2):
            metric.update_state(one_hot(truth[sample : sample + 1]), one_hot(prediction[sample : sample + 1]) * 0.9)
        expected = [region_dice(prediction[i], truth[i])[region] for i in range(2)]
        assert float(metric.result()) == pytest.approx(np.mean(expected), abs=1e-6)


def test_keras_metric_takes_the_largest_channel_if_it_reaches_one_half():
    truth = np.array([[1, 0, 0], [0, 0, 1], [0, 0, 1]], np.uint8).reshape(1, 1, 1, 3, 3)
    found = np.array([[0.6, 0.1, 0.7], [0.4, 0.2, 0.49], [0.1, 0.2, 0.5]], np.float32).reshape(1, 1, 1, 3, 3)
    metric = RegionDice((2,), name="ET")
    metric.update_state(truth, found)  # predicted voxels 0 and 2, true 1 and 2
    assert float(metric.result()) == pytest.approx(0.5)
    metric.reset_state()
    assert float(metric.result()) == 0


def test_keras_metric_works_in_a_traced_function_with_an_unknown_batch():
    metric = RegionDice((0,), name="WT")
    spec = tf.TensorSpec((None, 2, 2, 2, 3))
    tf.function(metric.update_state, input_signature=[spec, spec])(tf.ones((2, 2, 2, 2, 3)), tf.ones((2, 2, 2, 2, 3)))
    assert float(metric.result()) == 1
    assert RegionDice.from_config(metric.get_config()).region_channels == (0,)
