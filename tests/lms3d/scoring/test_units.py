"""Millimetres and voxels: scores do not depend on the orientation of a head, and `physical` rules measure in mm."""

from __future__ import annotations

import sys
from dataclasses import fields

import numpy as np
import pytest
from nibabel.affines import voxel_sizes
from scipy import ndimage

from lms3d.scoring import components, scores
from lms3d.scoring.columns import COLUMNS
from lms3d.scoring.pair import CasePair, sizes_mm
from lms3d.scoring.rules import PHYSICAL, RULES
from tests.lms3d.scoring.golden import pairs

TURNS = [pairs.rotation(*degrees) for degrees in np.random.default_rng(0).integers(-180, 180, (11, 3))] + [np.eye(3)]
TIES = (
    (0.859375, 0.859375, 3.0),
    (0.703125, 0.703125, 1.5),
    (0.390625,) * 3,
    (0.684375, 0.684375, 2.5),
    (0.8310546875,) * 3,
)
"""Fields of view over matrices. All but the last lie between two numbers of five decimals."""
SPACINGS = (*pairs.SPACINGS, *pairs.HEADER_SPACINGS, (0.4296875, 0.4296875, 1.2), (0.9375, 0.9375, 6.0), *TIES)
SHAPE = (30, 30, 30)


def turned(spacing) -> list[tuple[float, ...]]:
    """The voxel sizes that a header's float32 affine says, once for each turn."""
    found = []
    for turn in TURNS:
        affine = np.eye(4)
        affine[:3, :3] = (turn @ np.diag(spacing)).astype(np.float32)
        found.append(tuple(voxel_sizes(affine).tolist()))
    return found


def block(*spans) -> np.ndarray:
    found = np.zeros(SHAPE, bool)
    for span in spans:
        found[tuple(slice(*one) for one in span)] = True
    return found


def of_masks(prediction, truth, spacing, rules, region="WT"):
    return CasePair({region: prediction}, {region: truth}, spacing_mm=spacing, rules=RULES[rules]).regions[region]


def measured(prediction, truth, spacing, rules) -> dict[str, float]:
    pair = of_masks(prediction, truth, spacing, rules)
    return {name: COLUMNS[name].measure(pair) for name in COLUMNS.names}


def test_headers_differ_by_the_way_that_the_head_is_turned():
    """The spacings differ before rounding; otherwise the tests below would pass without it."""
    assert len(set(turned((1.0, 1.0, 1.0)))) > 6


@pytest.mark.parametrize("rules", ["brats2024-gli", "brats2026-met", "brats2024-met-physical"])
def test_scores_do_not_hang_on_how_the_head_is_turned(rules):
    """A lesion of exactly the volume that is dropped, and surfaces exactly 1 mm apart."""
    truth = block(
        ((2, 12), (2, 12), (2, 12)), ((22, 24), (22, 27), (22, 24)), ((20, 23), (5, 8), (5, 8))
    )  # 20 and 27 mm³
    prediction = block(((3, 13), (2, 12), (2, 12)), ((22, 24), (22, 27), (22, 24)), ((20, 23), (5, 8), (5, 8)))
    found = [measured(prediction, truth, spacing, rules) for spacing in turned((1.0, 1.0, 1.0))]
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=0, rel=0, nan_ok=True)
    assert found[0] == pytest.approx(measured(prediction, truth, (1, 1, 1), rules), abs=0, rel=0, nan_ok=True)


def every_golden_pair():
    """(rules, prediction, truth, voxel size in mm)."""
    for prediction, truth, spacing in pairs.masks(800):
        yield "brats2017", prediction, truth, spacing
    for prediction, truth in pairs.degenerate().values():
        yield "brats2023-gli", prediction, truth, (1.0, 1.0, 2.0)
    for number, (prediction, truth) in enumerate(pairs.oriented()):
        yield "brats2023-met", prediction > 0, truth > 0, pairs.HEADER_SPACINGS[number % 3]


@pytest.mark.slow
def test_every_golden_pair_scores_alike_under_a_dozen_affines():
    """Equal spacings give equal scores, so the scores are computed once for each spacing after rounding."""
    count = 0
    for rules, prediction, truth, spacing in every_golden_pair():
        known: dict[tuple[float, ...], dict[str, float]] = {}
        for sizes in (spacing, *turned(spacing)):
            key = of_masks(prediction, truth, sizes, rules).spacing_mm
            if key not in known:
                known[key] = measured(prediction, truth, sizes, rules)
        first, *others = known.values()
        assert all(other == pytest.approx(first, abs=0, rel=0, nan_ok=True) for other in others)
        count += 1
    assert count >= 1400


@pytest.mark.parametrize("spacing", SPACINGS)
def test_sizes_are_those_that_were_meant(spacing):
    one = block(((2, 5), (2, 5), (2, 5)))
    found = {of_masks(one, one, sizes, "brats2017").spacing_mm for sizes in turned(spacing)}
    assert len(found) == 1
    sizes = found.pop()
    assert sizes == pytest.approx(spacing, abs=5.1e-6)
    assert sizes == spacing or spacing not in TIES  # as the organisers' scripts read them from the file


@pytest.mark.parametrize("spacing", TIES)
@pytest.mark.parametrize("rules", ["brats2024-gli", "brats2026-gli", "brats2026-gli-physical"])
def test_scores_of_sizes_between_two_roundings_do_not_hang_on_how_the_head_is_turned(spacing, rules):
    """Surfaces one voxel apart, along the shortest edge or along an edge that is as long."""
    truth, prediction = block(((2, 12), (2, 12), (2, 12))), block(((3, 13), (2, 12), (2, 12)))
    found = [measured(prediction, truth, sizes, rules) for sizes in (spacing, *turned(spacing))]
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=0, rel=0, nan_ok=True)
    assert found[0]["lesion_nsd_voxel"] == 1 or rules == "brats2026-gli"  # it exchanges the sizes of x and z


PUBLISHED = [name for name in RULES if not name.endswith("-physical")]


@pytest.mark.parametrize("name", PUBLISHED)
def test_physical_rules_score_alike_at_1_mm(name):
    for number, (prediction, truth) in enumerate(pairs.oriented()):
        if number % 60 == 0:
            masks = [{"WT": labels > 0, "ET": labels == 3, "NETC": labels == 1} for labels in (prediction, truth)]
            found, physical = (
                scores.score(
                    CasePair(*masks, spacing_mm=(1, 1, 1), rules=RULES[one]), predictions="p", case="c", space="native"
                )
                for one in (name, f"{name}-physical")
            )
            for row, other in zip(found, physical, strict=True):
                assert {**row, **other} == row or all(
                    row[key] == pytest.approx(other[key], nan_ok=True) for key in COLUMNS.names
                )


def blobs(random) -> np.ndarray:
    """A label map of four kinds of smooth blobs, many of which touch."""
    labels = np.zeros((14, 16, 12), np.uint8)
    for value in (2, 1, 3, 4):
        field = ndimage.gaussian_filter(random.random(labels.shape), 1.2)
        labels[field > np.quantile(field, random.uniform(0.8, 0.99))] = value
    return labels


@pytest.mark.parametrize("name", ["brats2025-met", "brats2026-gli"])
def test_physical_rules_score_alike_in_any_order_of_the_axes(name):
    """Components that touch several others, and equally good assignments, of which numbers would choose."""
    for seed in range(
        18
    ):  # numbers decide with seeds 1, 5, 7 and 16 in the first set, and with seed 11 in the other one
        random = np.random.default_rng(seed)
        maps, spacing = (blobs(random), blobs(random)), ((1.0, 1.0, 1.0), (0.94, 0.94, 3.0))[seed % 2]
        found, other = (
            scores.score(
                CasePair(*(regions_of(turn(labels)) for labels in maps), spacing_mm=sizes, rules=RULES[f"{name}-physical"]),
                predictions="p", case="c", space="native",
            )
            for turn, sizes in ((np.array, spacing), (lambda labels: labels.transpose(2, 0, 1)[::-1], spacing[2:] + spacing[:2]))
        )  # fmt: skip
        assert len(found) == len(other) > 2
        for row, turned_row in zip(found, other, strict=True):
            assert [row[key] for key in COLUMNS.names] == pytest.approx(
                [turned_row[key] for key in COLUMNS.names], abs=1e-6, nan_ok=True
            )


def regions_of(labels) -> dict[str, np.ndarray]:
    alone = {"NETC": 1, "SNFH": 2, "ET": 3, "RC": 4}
    core = np.isin(labels, (1, 3))
    return {"WT": labels > 0, "TC": core, **{region: labels == value for region, value in alone.items()}}


def test_components_on_a_path_of_touches_are_one_lesion_of_physical_rules():
    """Enhancing parts a, b, c on two necrotic ones: a and b touch the first, b and c the second. The script puts b with one."""
    enhancing = block(((2, 5), (2, 5), (2, 5)), ((8, 11), (2, 5), (2, 5)), ((14, 17), (2, 5), (2, 5)))
    necrotic = block(((5, 8), (2, 5), (2, 5)), ((11, 14), (2, 5), (2, 5)))
    masks = {"ET": enhancing, "NETC": necrotic}
    of_script, physical = (
        components.numbers(components.lesions(masks, RULES[name], predicted=False)["ET"])
        for name in ("brats2024-met", "brats2024-met-physical")
    )
    assert (len(of_script), len(physical)) == (2, 1)


def test_physical_rules_know_no_voxels():
    assert RULES["brats2024-met-physical"].units == PHYSICAL
    assert all(getattr(PHYSICAL, one.name) in ("mm", "mm³") for one in fields(PHYSICAL))


@pytest.mark.parametrize("reach", [1, 3, 5])
def test_a_dilation_by_lengths_is_that_by_steps(reach):
    mask = np.random.default_rng(reach).integers(0, 40, (14, 15, 16)) == 0
    expected = ndimage.binary_dilation(mask, ndimage.generate_binary_structure(3, 2), iterations=reach)
    assert np.array_equal(components.dilated(mask, reach), expected)
    assert np.array_equal(components.dilated(mask, reach, (1.0, 1.0, 1.0 + 1e-12)), expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("share", [0, 0.02, 0.7, 1])
def test_the_outermost_voxels_are_those_that_an_erosion_takes(share, order):
    mask = np.array(np.random.default_rng(0).random((9, 8, 7)) < share, order=order)
    expected = np.argwhere(mask & ~ndimage.binary_erosion(mask))
    padded = np.pad(mask, 1)
    found = np.stack(np.unravel_index(components.outermost(padded), padded.shape), axis=-1) - 1
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_components_touch_if_a_dilation_of_one_meets_the_other(order):
    random, element = np.random.default_rng(1), ndimage.generate_binary_structure(3, 2)
    for _ in range(5):
        labels, other = (
            np.array(random.integers(1, 9, (7, 8, 9)) * (random.random((7, 8, 9)) < 0.05), np.int32, order=order)
            for _ in range(2)
        )
        expected = [
            (one, two)
            for one in np.unique(labels[labels > 0]).tolist()
            for two in np.unique(other[ndimage.binary_dilation(labels == one, element)]).tolist()
            if two
        ]
        assert components.touching(labels, other) == expected
        assert components.touching(labels, np.zeros_like(other)) == []


def test_a_dilation_in_mm_reaches_as_far_along_each_axis():
    mask = block(((14, 15), (14, 15), (14, 15)))
    grown = components.dilated(mask, 5, (1.0, 2.0, 5.0))
    reached = np.argwhere(grown) - 14
    assert np.abs(reached).max(axis=0).tolist() == [5, 2, 1]
    mm = np.abs(reached) * (1, 2, 5)
    assert mm.sum(axis=1).max() <= 10
    assert not components.dilated(mask, 1, (2.0, 2.0, 5.0))[14, 14, 15]


def element(reach, sizes) -> np.ndarray:
    """The dilation of one voxel by `reach`, by the definition in `components.dilated`."""
    most = [int(reach / size + 1e-9) for size in sizes]
    away = [np.abs(np.arange(-n, n + 1)) * size for n, size in zip(most, sizes, strict=True)]
    return np.add.outer(np.add.outer(away[0], away[1]), away[2]) <= 2 * reach + 1e-9


@pytest.mark.parametrize("sizes", [(0.4296875, 0.4296875, 1.2), (0.1, 0.7, 0.25), (0.3, 6.0, 1.0), (25000.0, 0.5, 1.0)])
@pytest.mark.parametrize("reach", [1, 3])
def test_a_dilation_in_mm_is_that_by_all_that_is_within_reach(sizes, reach):
    sizes = sizes_mm(sizes)
    for order in "CF":
        mask = np.array(np.random.default_rng(reach).integers(0, 300, (24, 17, 20)) == 0, order=order)
        expected = ndimage.binary_dilation(mask, element(reach, sizes))
        assert np.array_equal(components.dilated(mask, reach, sizes), expected)


def test_fine_voxels_are_dilated_in_a_few_passes():
    """1.4 million voxels lie within reach. One call or more for each took half a minute."""
    mask = np.zeros((125, 125, 125), bool)
    mask[62, 62, 62] = True
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        grown = components.dilated(mask, 3, (0.05, 0.05, 0.05))
    finally:
        sys.setprofile(None)
    assert np.array_equal(grown[2:-2, 2:-2, 2:-2], element(3, (0.05, 0.05, 0.05)))
    assert not grown[:2].any()
    assert len(calls) < 2000


COARSE = (2.0, 2.0, 5.0)


def test_the_diagonal_is_in_voxels_in_the_script_and_in_mm_if_physical():
    lost = block(((2, 9), (2, 9), (2, 9))), block()
    of_script, physical = (measured(*lost, COARSE, name) for name in ("brats2025-met", "brats2025-met-physical"))
    assert of_script["hd95_area_mm"] == pytest.approx(np.sqrt(3) * 30)
    assert of_script["lesion_hd95_mm"] == pytest.approx(np.sqrt(3) * 30)
    assert physical["hd95_area_mm"] == physical["lesion_hd95_mm"] == pytest.approx(30 * np.sqrt(4 + 4 + 25))


def test_distances_of_2026_are_in_voxels_and_along_exchanged_axes():
    truth, prediction = block(((2, 12), (2, 12), (2, 12))), block(((2, 12), (2, 12), (5, 15)))
    of_script, physical = (
        measured(prediction, truth, COARSE, name) for name in ("brats2026-gli", "brats2026-gli-physical")
    )
    assert (of_script["hd95_pooled_mm"], of_script["lesion_hd95_mm"]) == (
        3,
        6,
    )  # voxels; 2 mm each, which is the size of x
    assert (physical["hd95_pooled_mm"], physical["lesion_hd95_mm"]) == (15, 15)
    assert of_script["hd95_directed_mm"] == of_script["hd95_area_mm"] == 15  # not its own: always in mm
    assert of_script["nsd_counted_half_mm"] == physical["nsd_counted_half_mm"]
    fine = [measured(prediction, truth, (0.1, 0.1, 0.1), name) for name in ("brats2026-gli", "brats2026-gli-physical")]
    assert [one["nsd_counted_half_mm"] for one in fine] == [pytest.approx(of_script["nsd_counted_half_mm"]), 1]


def test_lesions_join_and_are_found_by_millimetres():
    apart = block(((2, 5), (2, 5), (2, 5)), ((2, 5), (2, 5), (10, 13)))  # 5 voxels between them: 25 mm
    of_script, physical = (measured(apart, apart, COARSE, name) for name in ("brats2023-gli", "brats2023-gli-physical"))
    assert (of_script["lesions_found"], physical["lesions_found"]) == (1, 2)


def test_specks_are_removed_by_their_volume():
    truth, prediction = block(((2, 9), (2, 9), (2, 9))), block(((2, 9), (2, 9), (2, 9)), ((20, 22), (20, 22), (20, 22)))
    of_script, physical = (
        measured(prediction, truth, COARSE, name) for name in ("brats2024-ped", "brats2024-ped-physical")
    )
    assert (of_script["lesions_false"], physical["lesions_false"]) == (0, 1)  # 8 voxels are 160 mm³, and 10 are dropped
    assert (of_script["dice"], physical["dice"] < 1) == (1, True)


def test_lesions_of_metastases_are_large_by_their_volume():
    """27 mm³: 2 voxels of 20 mm³, and 27 of 1 mm³, are large."""
    lesion = block(((2, 4), (2, 3), (2, 3)))
    assert measured(lesion, lesion, COARSE, "brats2026-met")["lesion_f1_large"] == 1
    assert np.isnan(measured(lesion, lesion, COARSE, "brats2026-met")["lesion_f1_small"])
    assert measured(lesion, lesion, (1, 1, 1), "brats2026-met")["lesion_f1_small"] == 1
    whole = block(((2, 5), (2, 5), (2, 5)))
    assert measured(whole, whole, (1, 1, 1), "brats2026-met")["lesion_f1_large"] == 1


def test_the_f1_of_metastases_is_of_any_match_and_those_by_size_ask_for_dice():
    """One voxel of 125 in common: a match for `lesion_f1`, a miss for that of large lesions."""
    truth, prediction = block(((2, 7), (2, 7), (2, 7))), block(((6, 11), (6, 11), (6, 11)))
    found = measured(prediction, truth, (1, 1, 1), "brats2026-met")
    assert (found["lesion_f1"], found["lesion_f1_large"]) == (1, 0)
    assert (found["lesions_found"], found["lesions_missed_large"]) == (1, 1)


def test_counted_nsd_is_the_mean_share_of_surface_voxels():
    """Two flat blocks. All 9 voxels of the smaller lie on the larger, but only 9 of the larger's 25 on the smaller."""
    truth, prediction = block(((2, 7), (2, 7), (4, 5))), block(((3, 6), (3, 6), (4, 5)))
    found = measured(prediction, truth, (1, 1, 1), "brats2025-met")
    assert found["nsd_counted_half_mm"] == pytest.approx((1 + 9 / 25) / 2)
    assert found["nsd_counted_one_mm"] == pytest.approx((1 + 21 / 25) / 2)
    assert found["lesion_nsd_half_mm"] == found["nsd_counted_half_mm"]
    assert found["nsd_half_mm"] != found["nsd_counted_half_mm"]


def test_plain_scores_of_metastases_are_of_raw_masks_since_2025():
    truth, prediction = block(((2, 9), (2, 9), (2, 9))), block(((2, 9), (2, 9), (2, 9)), ((20, 21), (20, 22), (20, 21)))
    before, since = (measured(prediction, truth, (1, 1, 1), name) for name in ("brats2024-met", "brats2025-met"))
    assert (before["dice"], before["lesion_dice"], since["lesion_dice"]) == (1, 1, 1)
    assert since["dice"] == pytest.approx(2 * 343 / (2 * 343 + 2))
