"""Lesion-wise scores of one region: every true lesion against what was predicted for it.

With dilation (2023 to 2025): lesions that are found or missed, and predicted components that touch no lesion, each with a share of
1 in the mean. Dice = sum over lesions / (lesions + false positives), and so NSD, and HD95 with the penalty for what is missed or
false. One to one (2026): means over the pairs alone; what has no partner is in F1 = 2 TP / (2 TP + FP + FN). See `rules.Rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

from lms3d.scoring import components, dice
from lms3d.scoring.rules import Rules

LEAST_DICE = 1e-6
"""Of a pair that may match one to one."""


class Measures(NamedTuple):
    """Of a lesion and what was predicted for it, or their means. NaN where a number is not defined."""

    dice: float
    hd95_mm: float
    nsd_half_mm: float
    """Counted surface voxels, within 0.5 mm."""
    nsd_one_mm: float
    nsd_voxel: float
    """Within the size of a voxel along its shortest edge."""


PERFECT = Measures(1.0, 0.0, 1.0, 1.0, 1.0)
UNDEFINED = Measures(*[float("nan")] * len(Measures._fields))

Distances = Callable[[np.ndarray, np.ndarray], tuple[float, float, float, float]]
"""(prediction, truth), neither empty -> what `Measures` has behind Dice."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Lesions of one region."""

    found: int
    missed: int
    false: int

    @property
    def f1(self) -> float:
        """NaN where there is nothing to find and nothing was marked: the caller knows what the rules make of it."""
        total = 2 * self.found + self.missed + self.false
        return 2 * self.found / total if total else float("nan")


@dataclass(frozen=True, kw_only=True)
class LesionScores:
    """Of one region."""

    means: Measures
    counts: Counts
    large: Counts | None = None
    """Of lesions from `Rules.large_from_mm3`, found only from `Rules.detected_from`; all false ones. None: there are none, or the
    rules know no sizes."""
    small: Counts | None = None


@dataclass(frozen=True, kw_only=True)
class Lesion:
    """One of the truth, and what was predicted for it."""

    mm3: float
    measures: Measures
    matched: bool


def score(
    prediction: np.ndarray, truth: np.ndarray, rules: Rules, *, region: str, spacing_mm: Sequence[float], penalty_mm: float,
    distances: Distances,
) -> LesionScores:  # fmt: skip
    """Components of prediction and truth (X, Y, Z) -> scores. penalty_mm: `rules.penalty_mm` on this grid."""
    missed = Measures(0.0, penalty_mm, 0.0, 0.0, 0.0)
    maps = _Maps(prediction, truth, spacing_mm=spacing_mm, missed=missed, distances=distances)
    if rules.matching == "one to one":
        lesions, false = _one_to_one(maps)
    else:
        lesions, false = _by_dilation(maps, rules.reach(region), components.sizes_of(rules, spacing_mm))
        lesions = [one for one in lesions if one.mm3 > rules.smallest_mm3(region)]
    large, small = _by_size(lesions, false, rules)
    return LesionScores(
        means=_means(lesions, false, rules, missed), counts=_counted(lesions, false), large=large, small=small
    )


def _counted(lesions: Sequence[Lesion], false: int, least_dice: float = 0.0) -> Counts:
    found = sum(1 for one in lesions if one.matched and one.measures.dice >= least_dice)
    return Counts(found=found, missed=len(lesions) - found, false=false)


def _by_size(lesions: Sequence[Lesion], false: int, rules: Rules) -> tuple[Counts | None, Counts | None]:
    """Of the large lesions, and of the small ones."""
    if not rules.large_from_mm3:
        return None, None
    large = [one for one in lesions if one.mm3 >= rules.large_from_mm3]
    small = [one for one in lesions if one.mm3 < rules.large_from_mm3]
    of_large, of_small = (_counted(some, false, rules.detected_from) if some else None for some in (large, small))
    return of_large, of_small


def _means(lesions: Sequence[Lesion], false: int, rules: Rules, missed: Measures) -> Measures:
    if not lesions and not false:
        return PERFECT if rules.both_empty == "perfect" else UNDEFINED
    large = [one for one in lesions if one.mm3 >= rules.large_from_mm3]
    if rules.large_from_mm3 and not large:
        return UNDEFINED
    if rules.false_positives_lower:
        return _mean([*(one.measures for one in large), *[missed] * false])
    pairs = [one.measures for one in lesions if one.matched]
    return _mean(pairs) if pairs else missed


def _mean(found: Sequence[Measures]) -> Measures:
    return Measures(*(float(one) for one in np.mean(found, axis=0)))


def _by_dilation(maps: _Maps, reach: int, sizes: Sequence[float]) -> tuple[list[Lesion], int]:
    """Every lesion with the union of the predicted components that touch its dilation; and the false positives."""
    lesions: list[Lesion] = []
    used: set[int] = set()
    margins = components.steps(reach, sizes)
    prediction, truth = maps.labels
    for number, box in maps.true.items():
        near = tuple(
            slice(max(0, one.start - wider), one.stop + wider) for one, wider in zip(box, margins, strict=True)
        )
        grown = components.dilated(truth[near] == number, reach, sizes)
        touched = components.numbers(prediction[near][grown]).tolist()
        used.update(touched)
        lesions.append(maps.lesion(touched, number))
    return lesions, len(maps.predicted.keys() - used)


def _one_to_one(maps: _Maps) -> tuple[list[Lesion], int]:
    """The assignment with the largest sum of Dice (a linear sum assignment); and the predictions without a partner."""
    prediction, truth = maps.labels
    overlaps = _overlaps(prediction, truth)
    sizes = [np.bincount(labels[labels > 0], minlength=2)[1:] for labels in (truth, prediction)]
    found = dice.dice(overlaps, np.add.outer(*sizes), both_empty=0.0)
    # As a cost, like panoptica's: of assignments that are equally good the solver then takes the same.
    cost = np.where(found >= LEAST_DICE, 1 - found, 1 + LEAST_DICE)
    rows, columns = linear_sum_assignment(cost)
    partners = {
        int(row) + 1: int(column) + 1 for row, column in zip(rows, columns, strict=True) if cost[row, column] < 1
    }
    lesions = [maps.lesion([partners[number]] if number in partners else [], number) for number in maps.true]
    return lesions, len(maps.predicted) - len(partners)


class _Maps:
    """Components of prediction and truth (X, Y, Z), and the box of each: whole volumes would be slow to compare."""

    def __init__(
        self,
        prediction: np.ndarray,
        truth: np.ndarray,
        *,
        spacing_mm: Sequence[float],
        missed: Measures,
        distances: Distances,
    ) -> None:
        self.labels = prediction, truth
        self.predicted, self.true = (
            {number: box for number, box in enumerate(ndimage.find_objects(labels), start=1) if box is not None}
            for labels in self.labels
        )
        self._voxel_mm3 = float(np.prod(spacing_mm))
        self._missed, self._distances = missed, distances

    def lesion(self, predicted: Sequence[int], true: int) -> Lesion:
        """A true component and the predicted ones that belong to it, which may be none."""
        found, lesion = self._masks(predicted, true)
        mm3 = round(np.count_nonzero(lesion) * self._voxel_mm3, components.ROUNDED)
        if not predicted:
            return Lesion(mm3=mm3, measures=self._missed, matched=False)
        measures = Measures(dice.of_masks(found, lesion, both_empty=np.nan), *self._distances(found, lesion))
        return Lesion(mm3=mm3, measures=measures, matched=True)

    def _masks(self, predicted: Sequence[int], true: int) -> tuple[np.ndarray, np.ndarray]:
        """Of some predicted components and a true one, cut to a box that holds them all."""
        boxes = [self.true[true], *(self.predicted[number] for number in predicted)]
        box = tuple(
            slice(min(one.start for one in spans), max(one.stop for one in spans)) for spans in zip(*boxes, strict=True)
        )
        prediction, truth = (labels[box] for labels in self.labels)
        return np.isin(prediction, predicted), truth == true


def _overlaps(prediction: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(true components, predicted components) -> voxels in common."""
    shape = (max(1, int(truth.max())), max(1, int(prediction.max())))
    counts = np.zeros(shape, np.int64)
    both = (truth > 0) & (prediction > 0)
    np.add.at(counts, (truth[both] - 1, prediction[both] - 1), 1)
    return counts
