"""The columns of a segmentation score, by name: how each is measured, and how tables and box plots show it.

    @column("surplus_ml", title="surplus ml", unit="ml", larger_is_better=False)
    def surplus(pair): return (pair.counts[1] - pair.counts[0]) * pair.voxel_ml

Every registered column is measured, stored, summarised and tabulated. `pair` is a `pair.RegionPair`: the masks, the rules, and what
several columns share (voxels in common, distances between surfaces, lesions), which is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lms3d.registry import Registry
from lms3d.scoring import dice as formulas
from lms3d.scoring.pair import NAN, RegionPair

SPACES = ("native", "cube")
"""The spaces in which scores are measured: the grid of the files, and the cube of the network."""

Measure = Callable[[RegionPair], float]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One metric of one region of one case."""

    measure: Measure
    title: str
    """The title in the Markdown table and on the axis of a box plot."""
    unit: str = ""
    """The unit; "" for a share of 1."""
    decimals: int = 3
    """The decimals in the Markdown table; CSV files have six."""
    larger_is_better: bool = True
    perfect: float = NAN
    """The value if both masks are empty and such regions are counted; NaN if the measured value stays."""

    spaces: tuple[str, ...] = SPACES
    """The spaces in which it is measured. A column with a unit is measured in native space only, since a cube has no
    millimetres."""
    in_table: bool = True
    """Whether the Markdown table shows its mean; CSV files and the report show all columns."""
    box_plot: bool = False
    of_truth: bool = False
    """Whether it depends on the truth alone. Then it has no ceiling."""


COLUMNS: Registry[Column] = Registry("metric column")
HEADLINE = "dice"
"""The column whose spread is summarised. Summaries show only the mean of the other columns."""


def column(name: str, **shown: Any) -> Callable[[Measure], Measure]:
    """A decorator that registers a measure as the column `name`. shown: the other fields of `Column`.

    ValueError if the name is taken, or if a column with a unit asks for cube space.
    """
    native = ("native",)
    shown = {"spaces": native if shown.get("unit") else SPACES, **shown}
    if shown.get("unit") and tuple(shown["spaces"]) != native:
        raise ValueError(
            f"metric column {name!r}: measured in {shown['unit']}, so only in native space; leave `spaces` out"
        )

    def add(measure: Measure) -> Measure:
        COLUMNS.register(name)(Column(measure=measure, **shown))
        return measure

    return add


@column("dice", title="Dice", box_plot=True, perfect=formulas.PERFECT)
def dice(pair: RegionPair) -> float:
    """See `lms3d.scoring.dice`; if both masks are empty, the rules decide."""
    common, predicted, true = pair.counts
    return float(formulas.dice(common, predicted + true, both_empty=pair.nothing(formulas.PERFECT)))


@column("sensitivity", title="sensitivity", perfect=1.0)
def sensitivity(pair: RegionPair) -> float:
    """The share of the truth that was found, |P and T| / |T|."""
    common, _, true = pair.counts
    if pair.both_empty:
        return pair.nothing(1.0)
    return common / true if true else pair.rules.nothing_to_find


@column("specificity", title="specificity", decimals=4)
def specificity(pair: RegionPair) -> float:
    """The share of the other voxels of the grid that was not marked, |not P and not T| / |not T|; 1 if the truth fills the grid."""
    common, predicted, _ = pair.counts
    others = pair.other_voxels
    return (others - (predicted - common)) / others if others else 1.0


@column("precision", title="precision", perfect=1.0)
def precision(pair: RegionPair) -> float:
    """The share of the prediction that is right, |P and T| / |P|; 0 if nothing was marked although there is truth."""
    common, predicted, _ = pair.counts
    if pair.both_empty:
        return pair.nothing(1.0)
    return common / predicted if predicted else 0.0


_MM = {"unit": "mm", "decimals": 1, "larger_is_better": False, "perfect": 0.0}

column("hd95_directed_mm", title="HD95 directed mm", **_MM)(lambda pair: pair.hd95("directed"))
column("hd95_pooled_mm", title="HD95 pooled mm", **_MM)(lambda pair: pair.hd95("pooled"))
column("hd95_area_mm", title="HD95 area mm", **_MM)(lambda pair: pair.hd95("area"))

# Without `unit`, since the value is a share. It is measured in native space all the same, because the tolerance is in millimetres.
column("nsd_half_mm", title="NSD 0.5 mm", spaces=("native",), perfect=1.0)(
    lambda pair: pair.nsd(pair.rules.tolerances_mm[0])
)
column("nsd_one_mm", title="NSD 1 mm", spaces=("native",), perfect=1.0)(
    lambda pair: pair.nsd(pair.rules.tolerances_mm[1])
)

column("nsd_counted_half_mm", title="counted NSD 0.5 mm", spaces=("native",), in_table=False, perfect=1.0)(
    lambda pair: pair.counted_nsd(pair.rules.tolerances_mm[0])
)
column("nsd_counted_one_mm", title="counted NSD 1 mm", spaces=("native",), in_table=False, perfect=1.0)(
    lambda pair: pair.counted_nsd(pair.rules.tolerances_mm[1])
)

_ML = {"unit": "ml", "decimals": 2, "in_table": False}

column("truth_ml", title="truth ml", of_truth=True, **_ML)(lambda pair: pair.counts[2] * pair.voxel_ml)
column("prediction_ml", title="prediction ml", **_ML)(lambda pair: pair.counts[1] * pair.voxel_ml)


@column("volume_difference_ml", title="volume difference ml", larger_is_better=False, **_ML)
def volume_difference(pair: RegionPair) -> float:
    """The difference of the volumes, |volume of P - volume of T|."""
    return abs(pair.counts[1] - pair.counts[2]) * pair.voxel_ml


@column("volume_difference", title="volume difference / truth", larger_is_better=False, in_table=False, perfect=0.0)
def relative_volume_difference(pair: RegionPair) -> float:
    """The difference of the volumes with its sign, (P - T) / T; NaN if the truth is empty and the prediction is not."""
    _, predicted, true = pair.counts
    if pair.both_empty:
        return pair.nothing(0.0)
    return (predicted - true) / true if true else NAN


def _mean_of_lesions(name: str) -> Measure:
    """The measure that takes one field of `lesions.Measures`."""
    return lambda pair: NAN if pair.lesions is None else getattr(pair.lesions.means, name)


_SHARE = {"spaces": ("native",), "perfect": 1.0}

column("lesion_dice", title="lesion-wise Dice", spaces=("native",), perfect=formulas.PERFECT)(_mean_of_lesions("dice"))
column("lesion_hd95_mm", title="lesion-wise HD95 mm", **_MM)(
    _mean_of_lesions("hd95_mm")
)  # the kind is that of the rules
column("lesion_nsd_half_mm", title="lesion-wise NSD 0.5 mm", in_table=False, **_SHARE)(_mean_of_lesions("nsd_half_mm"))
column("lesion_nsd_one_mm", title="lesion-wise NSD 1 mm", in_table=False, **_SHARE)(_mean_of_lesions("nsd_one_mm"))
column("lesion_nsd_voxel", title="lesion-wise NSD 1 voxel", in_table=False, **_SHARE)(_mean_of_lesions("nsd_voxel"))


@column("lesion_f1", title="lesion F1", spaces=("native",), perfect=1.0)
def lesion_f1(pair: RegionPair) -> float:
    """F1 = 2 TP / (2 TP + FP + FN), for lesions of all sizes."""
    if pair.lesions is None:
        return NAN
    f1 = pair.lesions.counts.f1
    return pair.nothing(1.0) if np.isnan(f1) else f1


_COUNT = {"spaces": ("native",), "decimals": 2, "in_table": False}


def _count(size: str, name: str) -> Measure:
    """The measure that takes one field of `lesions.Counts`. size: all lesions ("counts"), "large" ones or "small" ones. The value
    is NaN if there are none of that size."""

    def measure(pair: RegionPair) -> float:
        counts = None if pair.lesions is None else getattr(pair.lesions, size)
        return NAN if counts is None else getattr(counts, name)

    return measure


column("lesions_found", title="lesions found", **_COUNT)(_count("counts", "found"))
column("lesions_missed", title="lesions missed", larger_is_better=False, **_COUNT)(_count("counts", "missed"))
column("lesions_false", title="false lesions", larger_is_better=False, **_COUNT)(_count("counts", "false"))
for _size in ("large", "small"):
    column(f"lesion_f1_{_size}", title=f"F1 of {_size} lesions", spaces=("native",), in_table=False)(
        _count(_size, "f1")
    )
    column(f"lesions_found_{_size}", title=f"{_size} lesions found", **_COUNT)(_count(_size, "found"))
    column(f"lesions_missed_{_size}", title=f"{_size} lesions missed", larger_is_better=False, **_COUNT)(
        _count(_size, "missed")
    )
column("both_empty", title="both empty", decimals=2, in_table=False)(lambda pair: float(pair.both_empty))
