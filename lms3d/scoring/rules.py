"""How the BraTS challenge has scored, by year and set: one table, a row for each.

Read in, and compared with (tests/lms3d/scoring/golden): github.com/rachitsaluja/BraTS-2023-Metrics and BraTS-2024-Metrics, and
`BraTS_evaluation` 0.0.10 (2026) with the panoptica that it drives; arXiv:1811.02629 and 2107.02314 for 2017 to 2021.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from lms3d.errors import InputError

WHOLE = ("WT", "TC", "ET")
SPACING_18 = 2
"""Connectivity of the structuring element that dilates: two of three axes, so 18 neighbours."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What one challenge does with the two label maps of a case."""

    name: str
    regions: tuple[str, ...] = WHOLE
    """Scored, as far as the label schema has them: names of its regions, or of single labels."""

    hd95: Literal["directed", "pooled", "area"]
    """The kind of HD95 that it publishes, see `surfaces`. All three are in every table; lesions are scored by this one."""
    penalty_mm: float | Literal["diagonal"]
    """HD95 where one of the two masks is empty, or a lesion is missed; "diagonal": of the grid."""
    both_empty: Literal["perfect", "left out"] = "perfect"
    """Both masks empty: Dice 1 and HD95 0, or NaN, which means leave out."""
    disjoint_is_missed: bool = False
    """Whether two masks without a voxel in common have the penalty as their HD95, too."""
    nothing_to_find: float = 0.0
    """Sensitivity where truth is empty and the prediction is not."""
    tolerances_mm: tuple[float, float] = (0.5, 1.0)
    """Of the normalised surface Dice (NSD)."""
    missing_case: Literal["noted", "penalised"] = "noted"
    """A case of the truth without a prediction: left out and named, or scored 0 and `penalty_mm`."""

    matching: Literal["none", "dilation", "one to one"] = "none"
    """How lesions, which are 26-connected components, find each other. dilation: a lesion takes every predicted component that
    touches it once it is dilated, and lesions whose dilations touch are one; a component may serve several lesions. one to one:
    the assignment with the largest sum of Dice, pairs of Dice >= 1e-6 alone."""
    dilation: int = 0
    """Voxels, by an 18-connected element."""
    dilation_of: Mapping[str, int] = field(default_factory=dict)
    """Region -> voxels, where it has its own."""
    drop_mm3: float = 0.0
    """Truth lesions up to this volume do not count. What touches them is no false positive."""
    drop_mm3_of: Mapping[str, float] = field(default_factory=dict)
    clean_prediction: bool = False
    """Predicted components merge as true lesions do, those of `drop_mm3` voxels or fewer are removed, and what is left is scored:
    plain Dice, HD95, volumes, too."""
    merge_touching: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Region -> others, in this order: its components that touch one and the same component of another become one lesion."""
    false_positives_lower: bool = True
    """Whether false positives (and missed lesions) lower lesion-wise Dice and HD95; else F1 alone tells of them."""
    large_from_voxels: int = 0
    """Lesion-wise Dice and HD95 are of truth lesions with at least this many voxels; the smaller ones are only detected."""
    detected_from: float = 0.0
    """Dice from which a matched lesion counts as found."""

    def dilation_voxels(self, region: str) -> int:
        return self.dilation_of.get(region, self.dilation)

    def smallest_mm3(self, region: str) -> float:
        return self.drop_mm3_of.get(region, self.drop_mm3)

    @property
    def needed(self) -> tuple[str, ...]:
        """The regions, and those that they are merged by."""
        others = [other for names in self.merge_touching.values() for other in names]
        return tuple(dict.fromkeys([*self.regions, *self.merge_touching, *others]))


_2017 = Rules(name="brats2017", hd95="directed", penalty_mm="diagonal", nothing_to_find=1.0)
_2023 = Rules(name="brats2023", hd95="area", penalty_mm=374, matching="dilation", dilation=3, drop_mm3=50)
_2024 = replace(_2023, name="brats2024", clean_prediction=True)
_2026 = Rules(
    name="brats2026", hd95="pooled", penalty_mm=373, both_empty="left out", missing_case="penalised", matching="one to one",
    false_positives_lower=False, disjoint_is_missed=True,
)  # fmt: skip
_CHILDREN = ("WT", "TC", "ET", "NETC", "CC", "ED")
_CAVITY = ("WT", "TC", "NETC", "SNFH", "ET", "RC")
_TOUCHING_GLI = {
    "NETC": ("ET", "RC"),
    "ET": ("NETC", "RC"),
    "RC": ("ET", "NETC"),
    "SNFH": ("ET", "RC", "NETC"),
}

RULES: dict[str, Rules] = {
    rules.name: rules
    for rules in (
        _2017,
        *(replace(_2023, name=f"brats2023-{one}") for one in ("gli", "ssa", "ped")),
        replace(_2023, name="brats2023-men", dilation=1),
        replace(_2023, name="brats2023-met", dilation=1, drop_mm3=2),
        replace(
            _2024, name="brats2024-gli", regions=_CAVITY, penalty_mm=337, drop_mm3=20, drop_mm3_of={"ET": 10},
            dilation_of={"NETC": 5, "RC": 5},  # oedema too by intention; the reference misspells its name
            merge_touching=_TOUCHING_GLI,
        ),
        replace(_2024, name="brats2024-ped", regions=_CHILDREN, dilation=5, drop_mm3=10),
        replace(
            _2024, name="brats2024-met", regions=("WT", "TC", "ET", "RC"), penalty_mm="diagonal", dilation=1, drop_mm3=2,
            merge_touching={"ET": ("NETC",)},
        ),
        replace(_2024, name="brats2024-ssa", merge_touching={"ET": ("NETC",)}),
        replace(_2024, name="brats2024-men", dilation=1, clean_prediction=False),
        replace(_2026, name="brats2026-gli", regions=_CAVITY),
        replace(_2026, name="brats2026-ped", regions=_CHILDREN),
        replace(
            _2026, name="brats2026-met", regions=("WT", "TC", "ET", "RC"), false_positives_lower=True, large_from_voxels=27,
            detected_from=0.2,
        ),
        *(replace(_2026, name=f"brats2026-{one}") for one in ("ssa", "men")),
    )
}  # fmt: skip
"""By name. Not there: MEN-RT, which has one region of its own kind."""

YEARS = tuple(dict.fromkeys(name.split("-")[0] for name in RULES))

YEAR_OF_LABELS = {"brats2023": "brats2023", "brats2024": "brats2024", "brats2024-ped": "brats2024-ped"}
"""Label schema -> its challenge, in full or its year; of all others it is the first row."""


def choose(named: str | None, labels: str, cases: Iterable[str]) -> Rules:
    """The rules called `named` (a row, or a year alone), else those of the label schema `labels`.

    Where the set is not named the case names tell it (BraTS-MET-00001-000), else the schema; else it is GLI.
    """
    year = named or YEAR_OF_LABELS.get(labels, "brats2017")
    if year in RULES:
        return RULES[year]
    if year not in YEARS:
        raise InputError(
            f"--scoring: found {named!r}; expected one of {', '.join(dict.fromkeys((*YEARS, *RULES)))}; choose one"
        )
    return RULES[f"{year}-{_set_of(labels, cases)}"]


def _set_of(labels: str, cases: Iterable[str]) -> str:
    named = {found[1].lower() for case in cases if (found := re.match(r"BraTS-(GLI|SSA|MEN|MET|PED)-", case))}
    if len(named) == 1:
        return named.pop()
    return "ped" if labels == "brats2024-ped" else "gli"


def described(rules: Rules, *, chosen: bool) -> str:
    """One line for the head of every table. chosen: by the user, else by the labels."""
    penalty = "the diagonal of the grid" if rules.penalty_mm == "diagonal" else f"{rules.penalty_mm:g} mm"
    empty = "Dice 1, HD95 0" if rules.both_empty == "perfect" else "left out"
    lesions = {
        "none": "no lesions are matched",
        "dilation": f"lesions dilated by {rules.dilation} voxels"
        + "".join(f" ({region} {voxels})" for region, voxels in rules.dilation_of.items())
        + f", dropped up to {rules.drop_mm3:g} mm³"
        + "".join(f" ({region} {volume:g})" for region, volume in rules.drop_mm3_of.items()),
        "one to one": "lesions matched one to one",
    }[rules.matching]
    origin = "--scoring" if chosen else "the default for these labels; --scoring names others"
    return (
        f"Rules: {rules.name} ({origin}). Its HD95 is the {rules.hd95} kind; one mask empty: Dice 0, HD95 {penalty}; "
        f"both empty: {empty}; {lesions}."
    )
