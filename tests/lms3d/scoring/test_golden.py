"""Scores are the same as by independent implementations: numbers made by golden/make.py, and surface-distance itself."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import surface_distance

from lms3d.scoring import columns, surfaces
from lms3d.scoring.pair import CasePair, RegionPair
from lms3d.scoring.rules import RULES
from tests.lms3d.scoring.golden import pairs

GOLDEN = json.loads((Path(__file__).parent / "golden/golden.json").read_text())
MILLIMETRE = (1.0, 1.0, 1.0)


def region_pair(prediction, truth, spacing=MILLIMETRE, rules="brats2023-gli") -> RegionPair:
    return CasePair({"WT": prediction}, {"WT": truth}, spacing_mm=spacing, rules=RULES[rules]).regions["WT"]


def values(pair: RegionPair) -> dict[str, float]:
    return {name: columns.COLUMNS[name].measure(pair) for name in columns.COLUMNS.names}


def check_surfaces(prediction, truth, spacing) -> None:
    """Against surface-distance itself."""
    pair = region_pair(prediction, truth, spacing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it names scipy's functions by their old names
        expected = surface_distance.compute_surface_distances(truth, prediction, spacing)
    assert pair.hd95("area") == pytest.approx(surface_distance.compute_robust_hausdorff(expected, 95), abs=1e-6)
    for tolerance in (0.5, 1.0):
        found = surface_distance.compute_surface_dice_at_tolerance(expected, tolerance)
        assert pair.nsd(tolerance) == pytest.approx(found, abs=1e-9)


@pytest.mark.slow
def test_area_hd95_and_nsd_are_those_of_surface_distance_on_800_random_pairs():
    compared = 0
    for prediction, truth, spacing in pairs.masks(800, seed=5):
        if prediction.any() and truth.any():
            check_surfaces(prediction, truth, spacing)
            compared += 1
    assert compared >= 500


@pytest.mark.parametrize("name", list(pairs.degenerate()))
def test_degenerate_pairs(name):
    prediction, truth = pairs.degenerate()[name]
    found = values(region_pair(prediction, truth, rules="brats2017"))
    assert not np.isnan(
        [found[key] for key in ("dice", "sensitivity", "specificity", "precision", "nsd_half_mm")]
    ).any()
    if prediction.any() and truth.any():
        check_surfaces(prediction, truth, (1.0, 1.0, 2.0))
        same = np.array_equal(prediction, truth)
        assert (found["dice"] == 1) == same
        assert (found["hd95_directed_mm"] == 0) == same
    elif prediction.any() or truth.any():
        diagonal = np.sqrt(9**2 + 11**2 + 7**2)
        assert (found["dice"], found["nsd_one_mm"]) == (0, 0)
        assert [found[f"hd95_{kind}_mm"] for kind in surfaces.KINDS] == pytest.approx([diagonal] * 3)
    else:
        assert (found["dice"], found["nsd_one_mm"], found["hd95_area_mm"], found["both_empty"]) == (1, 1, 0, 1)


def as_others_say(pair: RegionPair, golden: dict) -> None:
    """Against MONAI, medpy and panoptica."""
    found = values(pair)
    for source, column in (
        ("monai_hd95", "hd95_directed_mm"), ("medpy_hd95", "hd95_pooled_mm"), ("panoptica_hd95", "hd95_pooled_mm"),
        ("medpy_dice", "dice"), ("panoptica_dice", "dice"), ("medpy_sensitivity", "sensitivity"),
        ("medpy_precision", "precision"), ("medpy_specificity", "specificity"),
    ):  # fmt: skip
        assert found[column] == pytest.approx(golden[source], abs=1e-5), (golden["digest"], column)


def test_degenerate_pairs_score_as_monai_medpy_and_panoptica_say():
    compared = []
    assert [golden["name"] for golden in GOLDEN["degenerate"]] == list(pairs.degenerate())
    for (prediction, truth), golden in zip(pairs.degenerate().values(), GOLDEN["degenerate"], strict=True):
        assert pairs.digest(prediction, truth) == golden["digest"], "other voxels than those of golden.json"
        if truth.all():  # 0 of 0: medpy says 0, which is to say that all was marked wrongly; ours is 1
            golden = {**golden, "medpy_specificity": 1.0}
        if "medpy_hd95" in golden:
            as_others_say(region_pair(prediction, truth, tuple(golden["spacing"])), golden)
            compared.append(golden["name"])
    assert set(pairs.degenerate()) - set(compared) == {"both empty", "prediction empty", "truth empty"}


@pytest.mark.slow
def test_masks_score_as_monai_medpy_and_panoptica_say():
    compared = 0
    for (prediction, truth, spacing), golden in zip(pairs.masks(len(GOLDEN["masks"])), GOLDEN["masks"], strict=True):
        assert pairs.digest(prediction, truth) == golden["digest"], "other voxels than those of golden.json"
        if "medpy_hd95" not in golden:
            continue
        as_others_say(region_pair(prediction, truth, spacing), golden)
        compared += 1
    assert compared >= 500
