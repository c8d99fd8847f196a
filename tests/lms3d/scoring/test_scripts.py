"""Scores are the same as by the organisers' own scripts, to the last digit. Their numbers (golden/scores.npz) were made by
golden/make.py.

500 random pairs of small label maps, 100 degenerate ones and 40 larger ones, each with one of nine headers (1 mm, 0.94x0.94x3
and 2x2x5 mm; axis-aligned, mirrored, oblique), every thirtieth with all nine. Exceptions are listed here by name, with the reason.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from nibabel.affines import voxel_sizes

from lms3d.scoring.columns import COLUMNS
from lms3d.scoring.pair import CasePair
from lms3d.scoring.rules import RULES
from tests.lms3d.scoring.golden import pairs
from tests.thorough import THOROUGH

ADULT = {"WT": (1, 2, 3), "TC": (1, 3), "ET": (3,), "NETC": (1,), "SNFH": (2,), "RC": (4,)}
PEDIATRIC = {"WT": (1, 2, 3, 4), "TC": (1, 2, 3), "ET": (1,), "NETC": (2,), "CC": (3,), "ED": (4,)}

_PLAIN = {
    "Sensitivity": "sensitivity", "Specificity": "specificity", "Legacy_Dice": "dice", "Legacy_HD95": "hd95_area_mm",
    "GT_Complete_Volume": "truth_ml", "Legacy NSD @ 0.5": "nsd_counted_half_mm", "Legacy NSD @ 1.0": "nsd_counted_one_mm",
}  # fmt: skip
_LESIONS = {
    "Num_TP": "lesions_found", "Num_FP": "lesions_false", "Num_FN": "lesions_missed", "LesionWise_Score_Dice": "lesion_dice",
    "LesionWise_Score_HD95": "lesion_hd95_mm", "LesionWise_Score_NSD @ 0.5": "lesion_nsd_half_mm",
    "LesionWise_Score_NSD @ 1.0": "lesion_nsd_one_mm",
}  # fmt: skip
_OF_2026 = {
    "all_instance_tp": "lesions_found", "all_instance_fp": "lesions_false", "all_instance_fn": "lesions_missed",
    "all_instance_f1": "lesion_f1", "global_dsc": "dice", "global_nsd": "nsd_counted_half_mm", "global_hd95": "hd95_pooled_mm",
    "lesionwise_dsc_mean": "lesion_dice", "lesionwise_nsd_mean": "lesion_nsd_voxel", "lesionwise_hd95_mean": "lesion_hd95_mm",
    **{f"{size}_instance_f1": f"lesion_f1_{size}" for size in ("large", "small")},
    **{f"{size}_instance_tp": f"lesions_found_{size}" for size in ("large", "small")},
    **{f"{size}_instance_fn": f"lesions_missed_{size}" for size in ("large", "small")},
}  # fmt: skip
OURS = {**_PLAIN, **_LESIONS, **_OF_2026}
"""Column of a script -> our column. It lacks false lesions by size, which 2026 does not distinguish; `lesions_false` has them
all."""

RULES_OF = {
    **{f"2023-{one}": [f"brats2023-{one.lower()}"] for one in ("GLI", "MEN", "MET")},
    **{
        f"2024-{one}": [f"brats{year}-{one.lower()}" for year in (2024, 2025)]
        for one in ("GLI", "PED", "MET", "SSA", "MEN")
    },
    "2025-MET": ["brats2025-met"],
    "2026-gli": ["brats2026-gli"],
    "2026-ped": ["brats2026-ped"],
    "2026-mets": ["brats2026-met"],
    "2026-GoAT": ["brats2026-goat", "brats2026-men", "brats2026-ssa"],
}
"""Script -> the rules that reproduce it."""

NUMBERED = ("Sensitivity", "Specificity", "Legacy_HD95")
"""The scripts of 2024 measure these on maps whose lesions are numbered 1, 2, .., as if the maps were masks: sums of numbers, and
surfaces of numbers modulo 256. We measure the masks. The script of MEN does not number lesions."""


def compared(script: str, rules: str) -> list[str]:
    """The columns of a script that equal ours."""
    _, about = golden()
    unlike = NUMBERED if script.startswith("2024") and script != "2024-MEN" else ()
    if script == "2024-MET" and rules == "brats2025-met":  # plain scores of raw masks, as of 2025-MET
        unlike = tuple(_PLAIN)
    return [name for name in about["columns"][script] if name in OURS and name not in unlike]


@cache
def golden():
    """(script -> (rows, regions, columns), their description)."""
    with np.load(Path(__file__).parent / "golden/scores.npz") as found:
        return {name: found[name] for name in found.files if name != "about"}, json.loads(str(found["about"]))


@cache
def placed() -> list:
    rows = list(pairs.placed())
    assert [pairs.digest(*row[1:]) for row in rows] == golden()[1]["digests"], "other voxels than those of scores.npz"
    return rows


def case(prediction, truth, spacing, rules: str) -> CasePair:
    regions = PEDIATRIC if "ped" in rules and "2023" not in rules else ADULT
    masks = [{name: np.isin(labels, group) for name, group in regions.items()} for labels in (prediction, truth)]
    return CasePair(*masks, spacing_mm=spacing, rules=RULES[rules])


def measured(pair, theirs: str) -> float:
    found = COLUMNS[OURS[theirs]].measure(pair)
    return found * 1000 if theirs == "GT_Complete_Volume" else found


def expected(pair, theirs: str, value: float) -> float:
    """The value that we must have if the script has `value`."""
    if theirs == "lesionwise_hd95_mean" and np.isinf(value):
        return 373  # their table has infinity there, and so has its mean; the global one has 373
    if theirs == "Specificity" and not pair.other_voxels:
        return 1  # the truth is everything: 0 of 0, which is 0 there
    return value


def check(script: str, rules: str, rows) -> int:
    """The number of compared numbers. AssertionError, with the first ones, if any differ."""
    found, about = golden()
    names, count, wrong = compared(script, rules), 0, []
    columns = [about["columns"][script].index(name) for name in names]
    for at in rows:
        header, prediction, truth = placed()[at]
        spacing = voxel_sizes(pairs.headers()[header])
        regions = case(prediction, truth, spacing, rules).regions
        for region, values in zip(about["regions"][script], found[script][at], strict=True):
            theirs = [
                expected(regions[region], name, values[column]) for name, column in zip(names, columns, strict=True)
            ]
            ours = [measured(regions[region], name) for name in names]
            count += len(names)
            if not np.allclose(ours, theirs, rtol=1e-6, atol=1e-6, equal_nan=True):
                wrong.append((at, header, region, {
                    name: (one, other) for name, one, other in zip(names, ours, theirs, strict=True)
                    if not np.isclose(one, other, rtol=1e-6, atol=1e-6, equal_nan=True)
                }))  # fmt: skip
    assert not wrong, f"{len(wrong)} of {count}: {wrong[:5]}"
    return count


STEP = 1 if THOROUGH else 12
"""Every twelfth pair, in a quarter of a minute. `python -m tests.stress tests --only '*test_scripts.py'` compares all."""


@pytest.mark.parametrize("script", RULES_OF)
def test_some_pairs_score_as_the_scripts_say(script):
    assert check(script, RULES_OF[script][0], range(0, len(placed()), 40))


@pytest.mark.slow
@pytest.mark.parametrize("script", RULES_OF)
def test_many_pairs_score_as_the_scripts_say(script):
    assert check(script, RULES_OF[script][0], range(1 % STEP, len(placed()), STEP))


def test_the_page_says_how_many_numbers_are_compared():
    found, _ = golden()
    numbers = sum(found[script][..., 0].size * len(compared(script, rules[0])) for script, rules in RULES_OF.items())
    assert f"All {numbers:,} numbers" in (Path(__file__).parents[3] / "docs/scoring.md").read_text()


def test_lesions_of_2025_are_those_of_the_script_of_metastases():
    """The rules of the same script, except for the plain scores."""
    assert check("2024-MET", "brats2025-met", range(0, len(placed()), 40))


def test_rules_of_one_script_differ_in_their_name_alone():
    for first, *others in RULES_OF.values():
        for other in others:
            alike = replace(RULES[other], name=first, plain_cleaned=RULES[first].plain_cleaned)
            assert alike == RULES[first]
            assert RULES[other].plain_cleaned == (other != "brats2025-met")


def test_every_script_gives_numbers_of_every_pair():
    """Otherwise a script that fails would be compared with nothing."""
    found, about = golden()
    assert set(about["columns"]) == set(RULES_OF)
    for script, values in found.items():
        assert values.shape == (len(placed()), len(about["regions"][script]), len(about["columns"][script]))
        assert not np.isnan(values).all(axis=2).any()
