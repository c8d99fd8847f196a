"""Scores against tables worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lms3d.scoring import dice as formulas
from lms3d.scoring import keras_dice, masks, surfaces
from lms3d.scoring.columns import COLUMNS
from lms3d.scoring.keras_dice import RegionDice
from lms3d.scoring.pair import CasePair
from lms3d.scoring.rules import RULES

REGIONS = {"WT": (1, 2, 4), "TC": (1, 4), "ET": (4,)}


def measured(prediction, truth, spacing=(1, 1, 1), rules="brats2017") -> dict[str, float]:
    """All columns of two masks."""
    pair = CasePair({"WT": prediction}, {"WT": truth}, spacing_mm=spacing, rules=RULES[rules]).regions["WT"]
    return {name: COLUMNS[name].measure(pair) for name in COLUMNS.names}


def mask(*bits: int) -> np.ndarray:
    return np.array(bits, bool).reshape(1, 2, -1)


@pytest.mark.parametrize(
    ("prediction", "truth", "dice", "sensitivity", "specificity", "precision"),
    [
        (mask(1, 1, 0, 0), mask(1, 1, 0, 0), 1.0, 1.0, 1.0, 1.0),
        (mask(1, 0, 0, 0), mask(1, 1, 0, 0), 2 / 3, 0.5, 1.0, 1.0),
        (mask(1, 1, 1, 0), mask(1, 1, 0, 0), 4 / 5, 1.0, 0.5, 2 / 3),
        (mask(0, 0, 1, 1), mask(1, 1, 0, 0), 0.0, 0.0, 0.0, 0.0),
        (mask(0, 0, 0, 0), mask(0, 0, 0, 0), 1.0, 1.0, 1.0, 1.0),
        (mask(1, 0, 0, 0), mask(0, 0, 0, 0), 0.0, 1.0, 0.75, 0.0),
        (mask(0, 0, 0, 0), mask(1, 0, 0, 0), 0.0, 0.0, 1.0, 0.0),
        (mask(1, 1, 1, 1), mask(1, 1, 1, 1), 1.0, 1.0, 1.0, 1.0),
    ],
)
def test_table_of_overlaps(prediction, truth, dice, sensitivity, specificity, precision):
    found = measured(prediction, truth)
    assert formulas.of_masks(prediction, truth, both_empty=1.0) == found["dice"] == pytest.approx(dice)
    assert found["sensitivity"] == pytest.approx(sensitivity)
    assert found["specificity"] == pytest.approx(specificity)
    assert found["precision"] == pytest.approx(precision)


def test_volumes():
    found = measured(mask(1, 1, 1, 0), mask(1, 1, 0, 0), (10, 10, 5))
    assert (found["truth_ml"], found["prediction_ml"], found["volume_difference_ml"]) == (1, 1.5, 0.5)
    assert found["volume_difference"] == 0.5
    assert np.isnan(measured(mask(1, 0, 0, 0), mask(0, 0, 0, 0))["volume_difference"])


def test_rules_say_what_two_empty_masks_are():
    nothing = mask(0, 0, 0, 0)
    of_2023, of_2026 = (measured(nothing, nothing, rules=rules) for rules in ("brats2023-gli", "brats2026-gli"))
    assert [of_2023[name] for name in ("dice", "hd95_area_mm", "lesion_dice", "lesion_f1")] == [1, 0, 1, 1]
    assert np.isnan([of_2026[name] for name in ("dice", "hd95_pooled_mm", "lesion_dice", "lesion_f1")]).all()
    assert of_2026["both_empty"] == of_2023["both_empty"] == 1


def region_dice(prediction: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    predicted, true = masks.region_masks(prediction, REGIONS), masks.region_masks(truth, REGIONS)
    return {name: formulas.of_masks(predicted[name], true[name], both_empty=1.0) for name in REGIONS}


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
    for kind in surfaces.KINDS:
        assert measured(cube(3, 3, 3), cube(3, 3, 3))[f"hd95_{kind}_mm"] == 0
        assert measured(cube(3, 3, 3), cube(6, 3, 3))[f"hd95_{kind}_mm"] == 3
        assert measured(cube(3, 3, 3), cube(6, 3, 3), (2, 1, 1))[f"hd95_{kind}_mm"] == 6


def test_the_three_kinds_differ_where_one_surface_is_larger():
    """A large block found, and a small one far away as well: 8 of 112 surface voxels are about 9 mm off."""
    truth, prediction = np.zeros((2, 40, 20, 20), bool)
    truth[2:8, 2:8, 2:8] = prediction[2:8, 2:8, 2:8] = True
    prediction[17:19, 2:4, 2:4] = True
    found = measured(prediction, truth)
    assert found["hd95_directed_mm"] > found["hd95_pooled_mm"]
    assert found["hd95_area_mm"] != found["hd95_directed_mm"]


def test_hausdorff_where_a_mask_is_empty():
    nothing = np.zeros((20, 20, 20), bool)
    assert measured(nothing, nothing)["hd95_directed_mm"] == 0
    for one, other in ((cube(1, 1, 1), nothing), (nothing, cube(1, 1, 1))):
        assert measured(one, other)["hd95_directed_mm"] == pytest.approx(20 * np.sqrt(3))
        assert measured(one, other, rules="brats2024-gli")["hd95_area_mm"] == 337
    brats_grid = np.zeros((240, 240, 155), bool)
    one = brats_grid.copy()
    one[100, 100, 100] = True
    assert measured(one, brats_grid)["hd95_pooled_mm"] == pytest.approx(373.13, abs=0.01)


def test_of_2026_masks_that_do_not_meet_are_as_bad_as_none():
    assert measured(cube(1, 1, 1), cube(10, 10, 10), rules="brats2026-gli")["hd95_pooled_mm"] == 373


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


def test_the_metric_of_nested_regions_looks_at_each_channel_alone_and_at_no_deeper_head():
    truth, random = np.zeros((1, 4, 4, 4, 2), np.uint8), np.random.default_rng(0)
    truth[0, :2, ..., 0] = 1
    truth[0, :1, ..., 1] = 1
    probabilities = np.where(truth > 0, 0.9, 0.1).astype(np.float32)
    probabilities[0, 0, ..., 0] = 0.6  # less than that of the inner region
    heads = np.concatenate([probabilities, random.random((1, 4, 4, 4, 4), np.float32)], axis=-1)
    for index in range(2):
        metric = RegionDice((index,), channels=2, disjoint=False, name="r")
        metric.update_state(truth, heads)
        assert float(metric.result()) == 1
    disjoint = RegionDice((0,), channels=2, name="r")
    disjoint.update_state(truth, heads)
    assert float(disjoint.result()) < 1


@pytest.mark.parametrize("rules", ["brats2023-gli", "brats2026-gli"])
def test_while_training_an_empty_region_counts_as_the_docs_say(rules):
    """EMPTY-2 and EMPTY-3: the table follows the rules, the metric of training does not."""
    nothing = np.zeros((1, 2, 2, 2, 1), np.uint8)
    metric = RegionDice((0,), name="r")
    metric.update_state(nothing, nothing.astype(np.float32))
    assert float(metric.result()) == keras_dice.BOTH_EMPTY == 1
    empty = np.zeros((2, 2, 2), bool)
    in_table = 1.0 if rules == "brats2023-gli" else np.nan
    assert measured(empty, empty, rules=rules)["dice"] == pytest.approx(in_table, nan_ok=True)
