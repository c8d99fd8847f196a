"""How the BraTS challenge has scored, by year and set: one table, a row for each.

Read in, and compared with (tests/lms3d/scoring/golden): github.com/rachitsaluja/BraTS-2023-Metrics and BraTS-2024-Metrics (which
is that of 2025, too), and `BraTS_evaluation` 0.0.10 (2026) with the panoptica that it drives; arXiv:1811.02629 and 2107.02314 for
2017 to 2021.

UNITS-1  A row does what its script does, also where voxels are not 1 mm and the script takes voxels for millimetres: a
         leaderboard is what people compare with.
UNITS-2  Each row has a twin, `<name>-physical`, that measures the same in millimetres. At 1 mm both score alike.
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
class Units:
    """In what a script measures. At 1 mm all of it comes to the same; the defaults are physically right."""

    whole: Literal["mm", "voxels"] = "mm"
    """Distances between whole masks, for HD95 of the rules' kind and NSD by voxels."""
    lesions: Literal["mm", "axes reversed"] = "mm"
    """Distances between lesions; "axes reversed": with the voxel size of x along z, and of z along x."""
    diagonal: Literal["mm", "voxels"] = "mm"
    """A penalty that is the diagonal of the grid."""
    dilation: Literal["mm", "voxels"] = "mm"
    cleaning: Literal["mm³", "voxels"] = "mm³"
    """The size up to which components of predictions are removed."""


PHYSICAL = Units()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What one challenge does with the two label maps of a case."""

    name: str
    units: Units = PHYSICAL
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
    """In `units.dilation`, by an 18-connected element."""
    dilation_of: Mapping[str, int] = field(default_factory=dict)
    """Region -> dilation, where it has its own."""
    drop_mm3: float = 0.0
    """Truth lesions up to this volume do not count. What touches them is no false positive."""
    drop_mm3_of: Mapping[str, float] = field(default_factory=dict)
    clean_prediction: bool = False
    """Predicted components merge as true lesions do, and those up to `drop_mm3`, in `units.cleaning`, are removed."""
    plain_cleaned: bool = True
    """Whether plain Dice, HD95, volumes are of the cleaned prediction, too."""
    merge_touching: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Region -> others, in this order: its components that touch one and the same component of another become one lesion."""
    false_positives_lower: bool = True
    """Whether false positives (and missed lesions) lower lesion-wise Dice and HD95; else F1 alone tells of them."""
    large_from_mm3: float = 0.0
    """Lesion-wise scores are of truth lesions with at least this volume; of the smaller ones F1 alone tells. 0: of all."""
    detected_from: float = 0.0
    """Dice from which a lesion counts as found in the F1 of large lesions and that of small ones."""

    def reach(self, region: str) -> int:
        """The dilation of a region."""
        return self.dilation_of.get(region, self.dilation)

    @property
    def largest_reach(self) -> int:
        return max([self.dilation, *self.dilation_of.values()])

    def smallest_mm3(self, region: str) -> float:
        return self.drop_mm3_of.get(region, self.drop_mm3)

    @property
    def needed(self) -> tuple[str, ...]:
        """The regions, and those that they are merged by."""
        others = [other for names in self.merge_touching.values() for other in names]
        return tuple(dict.fromkeys([*self.regions, *self.merge_touching, *others]))


_VOXELS = Units(dilation="voxels", cleaning="voxels", diagonal="voxels")

_2017 = Rules(name="brats2017", hd95="directed", penalty_mm="diagonal", nothing_to_find=1.0)
_2023 = Rules(
    name="brats2023", units=_VOXELS, hd95="area", penalty_mm=374, matching="dilation", dilation=3, drop_mm3=50
)
_2024 = replace(_2023, name="brats2024", clean_prediction=True)
_2026 = Rules(
    name="brats2026", units=Units(whole="voxels", lesions="axes reversed"), hd95="pooled", penalty_mm=373,
    both_empty="left out", missing_case="penalised", matching="one to one", false_positives_lower=False, disjoint_is_missed=True,
)  # fmt: skip
_CHILDREN = ("WT", "TC", "ET", "NETC", "CC", "ED")
_CAVITY = ("WT", "TC", "NETC", "SNFH", "ET", "RC")
_METASTASES = ("WT", "TC", "ET", "RC")
_TOUCHING_GLI = {
    "NETC": ("ET", "RC"),
    "ET": ("NETC", "RC"),
    "RC": ("ET", "NETC"),
    "SNFH": ("ET", "RC", "NETC"),
}

_OF_2024 = {
    "gli": replace(
        _2024, regions=_CAVITY, penalty_mm=337, drop_mm3=20, drop_mm3_of={"ET": 10},
        dilation_of={"NETC": 5, "RC": 5},  # oedema too by intention; the reference misspells its name
        merge_touching=_TOUCHING_GLI,
    ),
    "ped": replace(_2024, regions=_CHILDREN, dilation=5, drop_mm3=10),
    "met": replace(
        _2024, regions=_METASTASES, penalty_mm="diagonal", dilation=1, drop_mm3=2, merge_touching={"ET": ("NETC",)},
    ),
    "ssa": replace(_2024, merge_touching={"ET": ("NETC",)}),
    "men": replace(_2024, dilation=1, clean_prediction=False),
}  # fmt: skip

_PUBLISHED = (
    _2017,
    *(replace(_2023, name=f"brats2023-{one}") for one in ("gli", "ssa", "ped")),
    replace(_2023, name="brats2023-men", dilation=1),
    replace(_2023, name="brats2023-met", dilation=1, drop_mm3=2),
    *(replace(row, name=f"brats2024-{one}") for one, row in _OF_2024.items()),
    # The same scripts, but that of metastases has scored plain Dice and distances of raw masks since July 2025.
    *(replace(row, name=f"brats2025-{one}", plain_cleaned=one != "met") for one, row in _OF_2024.items()),
    replace(_2026, name="brats2026-gli", regions=_CAVITY),
    replace(_2026, name="brats2026-ped", regions=_CHILDREN),
    replace(
        _2026, name="brats2026-met", regions=_METASTASES, false_positives_lower=True, large_from_mm3=27, detected_from=0.2,
    ),
    *(replace(_2026, name=f"brats2026-{one}") for one in ("ssa", "men", "goat")),
)  # fmt: skip

SUFFIX = "-physical"

RULES: dict[str, Rules] = {rules.name: rules for rules in _PUBLISHED}
"""By name. Not there: MEN-RT, which has one region of its own kind, and GoAT before 2026, for which there is no script."""
RULES |= {name + SUFFIX: replace(rules, name=name + SUFFIX, units=PHYSICAL) for name, rules in RULES.items()}

YEARS = tuple(dict.fromkeys(rules.name.split("-")[0] for rules in _PUBLISHED))

YEAR_OF_LABELS = {"brats2023": "brats2023", "brats2024": "brats2024", "brats2024-ped": "brats2024-ped"}
"""Label schema -> its challenge, in full or its year; of all others it is the first row."""


def choose(named: str | None, labels: str, cases: Iterable[str]) -> Rules:
    """The rules called `named` (a row, or a year alone), else those of the label schema `labels`.

    "physical", alone or at the end of a name after a hyphen: the same in millimetres. If the set is not named, the case names
    tell it (BraTS-MET-00001-000), else the schema; else it is GLI. If no year is named and that of the labels has no script for the
    set, as for GoAT, its latest is taken. InputError for rules that there are not, also of a year that is named and a set.
    """
    asked, physical = _split(named)
    year, of_set = asked or YEAR_OF_LABELS.get(labels, "brats2017"), _set_of(labels, cases)
    name = year if year in RULES or year not in YEARS else f"{year}-{of_set}"
    if name not in RULES and not asked:
        name = _latest(of_set)
    if name in RULES:
        return RULES[name + SUFFIX if physical else name]
    if year in YEARS:
        raise InputError(
            f"--scoring: found {year} and cases called {of_set.upper()}, for which that challenge published no script; expected "
            f"rules with a set; name them, such as {_latest(of_set)} or {year}-gli"
        )
    known = dict.fromkeys((*YEARS, *(rules.name for rules in _PUBLISHED), SUFFIX[1:]))
    raise InputError(
        f"--scoring: found {named!r}; expected one of {', '.join(known)}, or one of them with {SUFFIX} behind; choose one"
    )


def guessed(rules: Rules, named: str | None, labels: str, cases: Iterable[str]) -> str:
    """What the user should know of how `choose` came to `rules`, in words without a full stop; empty if nothing."""
    asked, sets = _split(named)[0], _sets_of(cases)
    if asked in RULES or rules.name.removesuffix(SUFFIX) in YEARS:  # all named, or one row for all sets
        return ""
    if len(sets) > 1:
        return f"The cases are of several sets ({', '.join(sets)}), and all are scored by {rules.name}; --scoring names other rules"
    if not asked and not rules.name.startswith(YEAR_OF_LABELS[labels]):
        return f"The challenge of these labels published no script for cases called {sets[0]}: {rules.name} scores them"
    return ""


def _latest(of_set: str) -> str:
    return next(rules.name for rules in _PUBLISHED[::-1] if rules.name.endswith(of_set))


def _split(named: str | None) -> tuple[str, bool]:
    """ "brats2024-physical" -> ("brats2024", True); "physical" -> ("", True)."""
    found = named or ""
    physical = found == SUFFIX[1:] or found.endswith(SUFFIX)
    return (found.removesuffix(SUFFIX[1:]).removesuffix("-") if physical else found), physical


def _set_of(labels: str, cases: Iterable[str]) -> str:
    named = _sets_of(cases)
    if len(named) == 1:
        return named[0].lower()
    return "ped" if labels == "brats2024-ped" else "gli"


def _sets_of(cases: Iterable[str]) -> list[str]:
    """The sets that names of cases tell, sorted, in capitals."""
    found = (re.match(r"BraTS-(GLI|SSA|MEN|MET|PED|GoAT)-", case) for case in cases)
    return sorted({one[1].upper() for one in found if one})


def described(rules: Rules, *, chosen: bool) -> str:
    """One line for the head of every table. chosen: by the user, else by the labels."""
    penalty = "the diagonal of the grid" if rules.penalty_mm == "diagonal" else f"{rules.penalty_mm:g} mm"
    empty = "Dice 1, HD95 0" if rules.both_empty == "perfect" else "left out"
    lesions = {
        "none": "no lesions are matched",
        "dilation": f"lesions dilated by {rules.dilation}"
        + "".join(f" ({region} {reach})" for region, reach in rules.dilation_of.items())
        + f" {rules.units.dilation}, dropped up to {rules.drop_mm3:g} mm³"
        + "".join(f" ({region} {volume:g})" for region, volume in rules.drop_mm3_of.items()),
        "one to one": "lesions matched one to one",
    }[rules.matching]
    origin = "--scoring" if chosen else "the default for these labels; --scoring names others"
    return (
        f"Rules: {rules.name} ({origin}). Its HD95 is the {rules.hd95} kind; one mask empty: Dice 0, HD95 {penalty}; "
        f"both empty: {empty}; {lesions}.{_off_a_millimetre(rules)}"
    )


def _off_a_millimetre(rules: Rules) -> str:
    """What the script takes voxels for, as a sentence; empty if nothing of it concerns these rules."""
    units, diagonal = rules.units, rules.penalty_mm == "diagonal"
    dilates = rules.matching == "dilation"
    said = {
        "dilations": dilates and units.dilation == "voxels",
        "small components of predictions": rules.clean_prediction and units.cleaning == "voxels",
        "the diagonal": diagonal and units.diagonal == "voxels",
        f"{rules.hd95} HD95 and counted NSD": units.whole == "voxels",
    }
    in_voxels = [what for what, applies in said.items() if applies]
    reversed_axes = ", and exchanges the voxel sizes of x and z for lesions" if units.lesions != "mm" else ""
    if not in_voxels and not reversed_axes:
        return ""
    return (
        f" If voxels are not 1 mm: its script measures {', '.join(in_voxels)} in voxels{reversed_axes}, and so do these rules; "
        f"--scoring {rules.name}{SUFFIX} measures in mm."
    )
