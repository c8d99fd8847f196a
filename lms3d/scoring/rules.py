"""The scoring rules of the BraTS challenge: one table, with a row for each year and set.

The rules were read in, and compared with (tests/lms3d/scoring/golden), github.com/rachitsaluja/BraTS-2023-Metrics and
BraTS-2024-Metrics (which is also that of 2025), and `BraTS_evaluation` 0.0.10 (2026) with the panoptica that it calls. For 2017 to
2021 they follow arXiv:1811.02629 and 2107.02314.

UNITS-1  A row does what its script does, because people compare with a leaderboard. That holds even if voxels are not 1 mm and the
         script takes voxels for millimetres.
UNITS-2  Each row has a twin, `<name>-physical`, that measures the same in millimetres. At 1 mm both give the same scores, but
         for UNITS-3.
UNITS-3  The scores of a twin do not depend on the order of the file's axes. A script's may: it numbers components in that
         order, and the numbers decide with which of several others a component goes, and between equally good assignments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from lms3d.errors import InputError
from lms3d.scoring.dice import PERFECT

WHOLE = ("WT", "TC", "ET")


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units in which a script measures. At 1 mm all are equivalent. The defaults are physically right."""

    whole: Literal["mm", "voxels"] = "mm"
    """The unit of distances between whole masks, for HD95 of the rules' kind and NSD by voxels."""
    lesions: Literal["mm", "axes reversed"] = "mm"
    """The unit of distances between lesions. "axes reversed": mm, but with the voxel size of x along z, and of z along x."""
    diagonal: Literal["mm", "voxels"] = "mm"
    """The unit of a penalty that is the diagonal of the grid."""
    dilation: Literal["mm", "voxels"] = "mm"
    cleaning: Literal["mm³", "voxels"] = "mm³"
    """The unit of the size up to which components of predictions are removed."""


PHYSICAL = Units()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules by which one challenge scores the two label maps of a case."""

    name: str
    units: Units = PHYSICAL
    regions: tuple[str, ...] = WHOLE
    """The regions that are scored if the label schema has them: names of its regions, or of single labels."""

    hd95: Literal["directed", "pooled", "area"]
    """The kind of HD95 that the challenge publishes; see `surfaces`. Every table has all three; lesions are scored by this one."""
    penalty_mm: float | Literal["diagonal"]
    """The HD95 if one of the two masks is empty, or a lesion is missed. "diagonal": that of the grid."""
    both_empty: Literal["perfect", "left out"] = "perfect"
    """The scores if both masks are empty: `dice.PERFECT` and HD95 0, or NaN for all, which leaves the region out."""
    disjoint_is_missed: bool = False
    """Whether the HD95 of two masks without a voxel in common is the penalty, too."""
    nothing_to_find: float = 0.0
    """The sensitivity if the truth is empty and the prediction is not."""
    tolerances_mm: tuple[float, float] = (0.5, 1.0)
    """The tolerances of the normalised surface Dice (NSD)."""
    missing_case: Literal["noted", "penalised"] = "noted"
    """What happens to a case without a prediction: it is left out and named, or scored as Dice 0 and HD95 `penalty_mm`."""

    matching: Literal["none", "dilation", "one to one"] = "none"
    """How true and predicted lesions, which are 26-connected components, are matched. dilation: a lesion matches every predicted
    component that touches its dilation, and lesions whose dilations touch are one; a component may match several lesions. one to
    one: by the assignment with the largest sum of Dice, among pairs of Dice >= 1e-6."""
    dilation: int = 0
    """The reach of the dilation in `units.dilation`, by an 18-connected element."""
    dilation_of: Mapping[str, int] = field(default_factory=dict)
    """Region -> dilation, for regions that have their own."""
    drop_mm3: float = 0.0
    """True lesions up to this volume do not count. A predicted component that touches one is no false positive."""
    drop_mm3_of: Mapping[str, float] = field(default_factory=dict)
    clean_prediction: bool = False
    """Whether predicted components merge as true lesions do, and components up to `drop_mm3`, in `units.cleaning`, are removed."""
    plain_cleaned: bool = True
    """Whether plain Dice, HD95 and volumes are measured on the cleaned prediction, too."""
    merge_touching: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Region -> other regions, in order. Components of the region that touch the same component of another become one lesion."""
    false_positives_lower: bool = True
    """Whether false positives and missed lesions lower lesion-wise Dice and HD95. If not, only F1 shows them."""
    large_from_mm3: float = 0.0
    """The least volume of true lesions in lesion-wise scores. Only F1 covers the smaller ones. 0: all lesions."""
    detected_from: float = 0.0
    """The Dice from which a lesion counts as found, in the F1 of large lesions and in that of small ones."""

    @property
    def by_geometry(self) -> bool:
        """Whether no number of a component decides anything (UNITS-3)."""
        return self.units == PHYSICAL

    def reach(self, region: str) -> int:
        """The reach of the dilation of a region."""
        return self.dilation_of.get(region, self.dilation)

    @property
    def largest_reach(self) -> int:
        return max([self.dilation, *self.dilation_of.values()])

    def smallest_mm3(self, region: str) -> float:
        return self.drop_mm3_of.get(region, self.drop_mm3)

    @property
    def needed(self) -> tuple[str, ...]:
        """The regions that are scored, and the regions that merge them."""
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
        dilation_of={"NETC": 5, "RC": 5},  # oedema was meant to be here, too, but the reference misspells its name
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
    *(replace(_2023, name=f"brats2023-{name}") for name in ("gli", "ssa", "ped")),
    replace(_2023, name="brats2023-men", dilation=1),
    replace(_2023, name="brats2023-met", dilation=1, drop_mm3=2),
    *(replace(row, name=f"brats2024-{name}") for name, row in _OF_2024.items()),
    # 2025 has the same scripts, but since July 2025 that of metastases scores plain Dice and distances on raw masks.
    *(replace(row, name=f"brats2025-{name}", plain_cleaned=name != "met") for name, row in _OF_2024.items()),
    replace(_2026, name="brats2026-gli", regions=_CAVITY),
    replace(_2026, name="brats2026-ped", regions=_CHILDREN),
    replace(
        _2026, name="brats2026-met", regions=_METASTASES, false_positives_lower=True, large_from_mm3=27, detected_from=0.2,
    ),
    *(replace(_2026, name=f"brats2026-{name}") for name in ("ssa", "men", "goat")),
)  # fmt: skip

GENERAL = Rules(name="classes", regions=(), hd95="directed", penalty_mm="diagonal", both_empty="left out")
"""The rules of data sets that have none of their own: Dice as in nnU-Net, HD95 as in MONAI. `regions` come from the data set."""

SUFFIX = "-physical"
_RADIOTHERAPY = "MEN-RT"

RULES: dict[str, Rules] = {rules.name: rules for rules in _PUBLISHED}
"""The rules by name. They lack MEN-RT, which has one region of its own kind, and GoAT before 2026, which has no script."""
ALIASES = {f"brats{year}": _2017.name for year in range(2018, 2022)}
"""Year -> the row that covers it, for years without a row of their own."""
RULES |= {name + SUFFIX: replace(rules, name=name + SUFFIX, units=PHYSICAL) for name, rules in RULES.items()}

YEARS = tuple(dict.fromkeys(rules.name.split("-")[0] for rules in _PUBLISHED))

YEAR_OF_LABELS = {"brats2023": "brats2023", "brats2024": "brats2024", "brats2024-ped": "brats2024-ped"}
"""Label schema -> its challenge: a row, or a year. Every other schema has the first row."""


def select(named: str | None, labels: str, cases: Iterable[str]) -> Rules:
    """The rules called `named` (a row, or only a year), else the rules of the label schema `labels`.

    Capitals do not matter. "physical", alone or at the end of a name after a hyphen, selects the same rules in millimetres. If the
    set is not named, it follows from the case names (BraTS-MET-00001-000), else from the schema; else it is GLI. If no year is
    named, and the year of the labels has no script for the set, as for GoAT, the latest rules of the set are taken. InputError if
    there are no such rules, none for the named year and the set, or cases of MEN-RT and no row is named.
    """
    cases = list(cases)
    wanted, physical = _split(named)
    if _RADIOTHERAPY in _sets_of(cases) and wanted not in RULES:
        raise InputError(
            f"--scoring: found cases called {_RADIOTHERAPY}, whose one region no rules score; expected another set; name rules "
            "with a set, such as brats2024-men, to score them as that"
        )
    year, of_set = wanted or YEAR_OF_LABELS.get(labels, "brats2017"), _set_of(labels, cases)
    name = year if year in RULES or year not in YEARS else f"{year}-{of_set}"
    if name not in RULES and not wanted:
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
    """The assumption by which `select` came to `rules`, as a sentence without a full stop; "" if it assumed nothing."""
    wanted, sets = _split(named)[0], _sets_of(cases)
    if wanted in RULES or rules.name.removesuffix(SUFFIX) in YEARS:  # the user named a row, or one row is for all sets
        return ""
    if len(sets) > 1:
        return f"The cases are of several sets ({', '.join(sets)}), and all are scored by {rules.name}; --scoring names other rules"
    if not wanted and not rules.name.startswith(YEAR_OF_LABELS[labels]):
        return f"The challenge of these labels published no script for cases called {sets[0]}: {rules.name} scores them"
    return ""


def _latest(of_set: str) -> str:
    return next(rules.name for rules in _PUBLISHED[::-1] if rules.name.endswith(of_set))


def _split(named: str | None) -> tuple[str, bool]:
    """(name, whether physical): "brats2024-physical" -> ("brats2024", True); "physical" -> ("", True)."""
    name = (named or "").lower()
    physical = name == SUFFIX[1:] or name.endswith(SUFFIX)
    row = name.removesuffix(SUFFIX[1:]).removesuffix("-") if physical else name
    return ALIASES.get(row, row), physical


def _set_of(labels: str, cases: Iterable[str]) -> str:
    sets = _sets_of(cases)
    if len(sets) == 1:
        return sets[0].lower()
    return "ped" if labels == "brats2024-ped" else "gli"


def _sets_of(cases: Iterable[str]) -> list[str]:
    """The sets in the names of cases, sorted, in capitals."""
    matches = (re.match(r"BraTS-(GLI|SSA|MEN-RT|MEN|MET|PED|GoAT)-", case) for case in cases)
    return sorted({match[1].upper() for match in matches if match})


def described(rules: Rules, *, chosen: bool) -> str:
    """One line about the rules for the head of every table. chosen: whether the user chose them; if not, the labels did."""
    penalty = "the diagonal of the grid" if rules.penalty_mm == "diagonal" else f"{rules.penalty_mm:g} mm"
    empty = f"Dice {PERFECT:g}, HD95 0" if rules.both_empty == "perfect" else "left out"
    lesions = {
        "none": "no lesions are matched",
        "dilation": f"lesions dilated by {rules.dilation}"
        + "".join(f" ({region} {reach})" for region, reach in rules.dilation_of.items())
        + f" {rules.units.dilation}, dropped up to {rules.drop_mm3:g} mm³"
        + "".join(f" ({region} {volume:g})" for region, volume in rules.drop_mm3_of.items()),
        "one to one": "lesions matched one to one",
    }[rules.matching]
    origin = "--scoring" if chosen else "the default for these labels; --scoring names others"
    origin = "of any labels" if rules.name == GENERAL.name else origin
    return (
        f"Rules: {rules.name} ({origin}). Its HD95 is the {rules.hd95} kind; one mask empty: Dice 0, HD95 {penalty}; "
        f"both empty: {empty}; {lesions}.{_off_a_millimetre(rules)}"
    )


def _off_a_millimetre(rules: Rules) -> str:
    """A sentence about what the script measures in voxels; "" if that does not concern these rules."""
    units, diagonal = rules.units, rules.penalty_mm == "diagonal"
    dilates = rules.matching == "dilation"
    measures = {
        "dilations": dilates and units.dilation == "voxels",
        "small components of predictions": rules.clean_prediction and units.cleaning == "voxels",
        "the diagonal": diagonal and units.diagonal == "voxels",
        f"{rules.hd95} HD95 and counted NSD": units.whole == "voxels",
    }
    in_voxels = [measure for measure, applies in measures.items() if applies]
    reversed_axes = ", and exchanges the voxel sizes of x and z for lesions" if units.lesions != "mm" else ""
    if not in_voxels and not reversed_axes:
        return ""
    return (
        f" If voxels are not 1 mm: its script measures {', '.join(in_voxels)} in voxels{reversed_axes}, and so do these rules; "
        f"--scoring {rules.name}{SUFFIX} measures in mm."
    )
