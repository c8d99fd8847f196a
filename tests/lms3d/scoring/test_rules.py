"""The choice of rules, their rows, and lesions worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lms3d.errors import InputError
from lms3d.scoring import components, rules
from lms3d.scoring.columns import COLUMNS
from lms3d.scoring.pair import CasePair
from lms3d.scoring.rules import RULES


@pytest.mark.parametrize(
    ("named", "labels", "case", "expected"),
    [
        (None, "brats2020", "BraTS20_Training_001", "brats2017"),
        (None, "msd", "BRATS_001", "brats2017"),
        (None, "brats2023", "BraTS-MET-00001-000", "brats2023-met"),
        (None, "brats2023", "own", "brats2023-gli"),
        (None, "brats2024", "BraTS-GLI-00001-000", "brats2024-gli"),
        (None, "brats2024-ped", "BraTS-PED-00001-000", "brats2024-ped"),
        ("brats2024", "brats2023", "BraTS-SSA-00001-000", "brats2024-ssa"),
        ("brats2026", "brats2024-ped", "own", "brats2026-ped"),
        ("brats2024-men", "brats2023", "BraTS-GLI-00001-000", "brats2024-men"),
        ("brats2017", "brats2023", "x", "brats2017"),
        ("brats2025", "brats2024", "BraTS-MET-00001-000", "brats2025-met"),
        ("brats2026", "brats2023", "BraTS-GoAT-00001", "brats2026-goat"),
        (None, "brats2023", "BraTS-GoAT-00001", "brats2026-goat"),
        ("physical", "brats2023", "BraTS-GoAT-00001", "brats2026-goat-physical"),
        ("brats2024-ssa", "brats2023", "BraTS-GoAT-00001", "brats2024-ssa"),
        ("physical", "brats2023", "BraTS-MET-00001-000", "brats2023-met-physical"),
        ("physical", "brats2020", "BraTS20_Training_001", "brats2017-physical"),
        ("brats2026-physical", "brats2024-ped", "own", "brats2026-ped-physical"),
        ("brats2024-met-physical", "brats2024", "own", "brats2024-met-physical"),
        ("brats2021", "brats2021", "x", "brats2017"),
        ("brats2018-physical", "brats2023", "BraTS-GLI-00001-000", "brats2017-physical"),
        ("BraTS2024-MET", "brats2023", "own", "brats2024-met"),
        ("Physical", "brats2020", "own", "brats2017-physical"),
        ("brats2024-men", "brats2023", "BraTS-MEN-RT-0001-1", "brats2024-men"),
    ],
)
def test_rules_follow_the_option_then_the_case_names_then_the_labels(named, labels, case, expected):
    assert rules.select(named, labels, [case]).name == expected


def test_unknown_rules_are_refused():
    with pytest.raises(
        InputError, match="--scoring: found 'brats2022'; expected one of brats2017, brats2023, brats2024"
    ) as told:
        rules.select("brats2022", "brats2021", [])
    assert str(told.value).count("brats2017") == 1


@pytest.mark.parametrize("named", ["brats2024", "brats2025-physical"])
def test_a_year_that_is_named_and_has_no_script_for_the_set_is_refused(named):
    """GoAT had none before 2026, and is not scored as gliomas are."""
    with pytest.raises(InputError, match="cases called GOAT, for which that challenge published no script") as told:
        rules.select(named, "brats2023", ["BraTS-GoAT-00001"])
    assert "such as brats2026-goat or" in str(told.value)


@pytest.mark.parametrize("named", [None, "brats2024", "physical"])
@pytest.mark.parametrize("others", [[], ["BraTS-MEN-00001-000"]])
def test_cases_of_radiotherapy_are_not_scored_as_meningiomas(named, others):
    """They have one region, the gross tumour volume, and rules of their own."""
    with pytest.raises(InputError, match="found cases called MEN-RT, whose one region no rules score"):
        rules.select(named, "brats2023", iter(["BraTS-MEN-RT-0001-1", *others]))


GOAT, GLI, MET = "BraTS-GoAT-00001", "BraTS-GLI-00001-000", "BraTS-MET-00001-000"


@pytest.mark.parametrize(
    ("named", "labels", "cases", "says"),
    [
        (None, "brats2023", [GOAT], "published no script for cases called GOAT: brats2026-goat scores them"),
        ("physical", "brats2023", [GOAT], "brats2026-goat-physical scores them"),
        (None, "brats2023", [MET, GOAT, GLI], "several sets (GLI, GOAT, MET), and all are scored by brats2023-gli;"),
        ("brats2026", "brats2023", [MET, GLI], "all are scored by brats2026-gli;"),
        ("brats2026", "brats2023", [GOAT], ""),
        ("brats2024-met-physical", "brats2023", [MET, GLI], ""),
        (None, "brats2021", [MET, GLI], ""),
        ("brats2021", "brats2023", [MET, GLI], ""),
        (None, "brats2023", [MET, "own"], ""),
        (None, "brats2024-ped", ["own"], ""),
    ],
)
def test_a_guess_that_may_be_wrong_is_told(named, labels, cases, says):
    told = rules.guessed(rules.select(named, labels, cases), named, labels, cases)
    assert says in told
    assert bool(told) == bool(says)


@pytest.mark.parametrize("named", ["brats2024-met-", "physical-brats2024", "brats2022-physical", "-physical-physical"])
def test_what_is_nearly_a_name_is_refused(named):
    with pytest.raises(InputError, match=f"--scoring: found '{named}'; expected one of"):
        rules.select(named, "brats2023", [])


@pytest.mark.parametrize("name", list(RULES))
def test_every_row_is_described_and_knows_what_it_needs(name):
    row = RULES[name]
    told = rules.described(row, chosen=False)
    assert f"Rules: {name} (the default for these labels" in told
    assert f"the {row.hd95} kind" in told
    assert set(row.regions) <= set(row.needed)
    off = "If voxels are not 1 mm" in told
    assert off == (not name.endswith("physical") and name != "brats2017")
    assert not off or f"--scoring {name}-physical measures in mm" in told


def mask(*blocks) -> np.ndarray:
    """(start, size) of cubes in a grid of 60x20x20."""
    found = np.zeros((60, 20, 20), bool)
    for start, size in blocks:
        found[start : start + size, 5 : 5 + size, 5 : 5 + size] = True
    return found


def lesions(prediction, truth, name) -> dict[str, float]:
    pair = CasePair({"WT": prediction}, {"WT": truth}, spacing_mm=(1, 1, 1), rules=RULES[name]).regions["WT"]
    return {key: COLUMNS[key].measure(pair) for key in COLUMNS.names if key.startswith("lesion")}


def test_one_found_one_missed_one_false():
    truth, prediction = mask((2, 5), (25, 5)), mask((2, 5), (45, 5))
    of_2023 = lesions(prediction, truth, "brats2023-gli")
    assert [of_2023[f"lesions_{name}"] for name in ("found", "missed", "false")] == [1, 1, 1]
    assert of_2023["lesion_dice"] == pytest.approx(1 / 3)
    assert of_2023["lesion_hd95_mm"] == pytest.approx(2 * 374 / 3)
    of_2026 = lesions(prediction, truth, "brats2026-gli")
    assert (of_2026["lesion_dice"], of_2026["lesion_hd95_mm"], of_2026["lesion_f1"]) == (1, 0, 0.5)
    assert np.isnan(lesions(prediction, truth, "brats2017")["lesion_dice"])


def test_neighbours_are_one_lesion_and_small_ones_are_dropped():
    close = mask((2, 5), (10, 5))  # three voxels apart: their dilations by three meet
    assert lesions(close, close, "brats2023-gli")["lesions_found"] == 1
    assert lesions(close, close, "brats2023-men")["lesions_found"] == 2
    small = mask((2, 5), (30, 3))  # 27 mm³ are dropped up to 50
    found = lesions(small, small, "brats2023-gli")
    assert (found["lesions_found"], found["lesions_false"], found["lesion_dice"]) == (1, 0, 1)
    assert lesions(small, small, "brats2023-met")["lesions_found"] == 2


def test_a_component_may_serve_several_lesions_or_one():
    truth, bridge = mask((2, 5), (22, 5)), mask((2, 5), (22, 5))
    bridge[2:27, 7, 7] = True
    assert lesions(bridge, truth, "brats2023-gli")["lesions_found"] == 2
    assert lesions(bridge, truth, "brats2026-gli")["lesions_found"] == 1


def test_specks_are_cleaned_from_predictions_in_2024():
    truth, prediction = mask((2, 5)), mask((2, 5), (40, 2))
    for name, false in (("brats2023-gli", 1), ("brats2024-gli", 0), ("brats2024-men", 1)):
        assert lesions(prediction, truth, name)["lesions_false"] == false


def test_parts_that_touch_one_and_the_same_other_are_joined():
    labels = components.connected(mask((2, 5), (20, 5), (40, 5)))
    other = np.zeros_like(labels)
    other[7:20, 5:8, 5:8] = 1
    other[45:50, 5:8, 5:8] = 2
    assert components.touching(labels, other) == [(1, 1), (2, 1), (3, 2)]
    row = replace(RULES["brats2024-ssa"], clean_prediction=False)
    found = components.lesions({"ET": labels > 0, "NETC": other > 0}, row, predicted=False)
    assert len(components.numbers(found["ET"])) == 2


def test_what_a_prediction_cannot_name_counts_as_not_found_and_joins_what_it_did():
    truth = {"ET": mask((2, 5), (20, 5)), "RC": mask()}
    truth["RC"][7:20, 5:8, 5:8] = True
    pair = CasePair({"ET": truth["ET"]}, truth, spacing_mm=(1, 1, 1), rules=RULES["brats2024-gli"])
    assert list(pair.regions) == ["ET", "RC"]
    assert COLUMNS["dice"].measure(pair.regions["RC"]) == 0
    assert COLUMNS["lesions_missed"].measure(pair.regions["RC"]) == 1
    assert COLUMNS["dice"].measure(pair.regions["ET"]) == 1
    assert COLUMNS["lesions_found"].measure(pair.regions["ET"]) == 1  # the cavity of the truth makes one lesion of two


def test_a_crop_does_not_stop_what_the_grid_does_not_stop():
    """The numbers of components do not depend on the empty space around the tumour."""
    truth, prediction = mask((2, 5), (14, 5)), mask((4, 5), (24, 4))
    wide = [np.pad(one, 30) for one in (prediction, truth)]
    for name in ("brats2023-gli", "brats2024-ped", "brats2026-met"):
        assert lesions(prediction, truth, name) == pytest.approx(lesions(*wide, name), nan_ok=True)
