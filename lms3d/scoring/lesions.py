"""Lesion-wise scores of one region: each true lesion is compared with the predicted components that match it.

With dilation (2023 to 2025): found lesions, missed lesions, and predicted components that touch no lesion all have weight 1 in the
mean. Dice = sum over lesions / (lesions + false positives); NSD likewise; HD95 is the penalty for a missed or a false lesion.
One to one (2026): the means are over the pairs only; F1 = 2 TP / (2 TP + FP + FN) accounts for the lesions without a partner. See
`rules.Rules`.
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
"""The least Dice of a pair that may match one to one."""
_TIE = 1e-9
"""The part of distances in a cost: more than the rounding of a sum of Dice, and less than a difference of Dice."""


class Measures(NamedTuple):
    """The measures of a lesion and the components that match it, or their means. NaN for a number that is not defined."""

    dice: float
    hd95_mm: float
    nsd_half_mm: float
    """The share of surface voxels within 0.5 mm."""
    nsd_one_mm: float
    nsd_voxel: float
    """The share of surface voxels within the shortest edge of a voxel."""


PERFECT = Measures(dice.PERFECT, 0.0, 1.0, 1.0, 1.0)
UNDEFINED = Measures(*[float("nan")] * len(Measures._fields))

Distances = Callable[[np.ndarray, np.ndarray], tuple[float, float, float, float]]
"""Computes, from a prediction and a truth that are not empty, the fields of `Measures` after Dice."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The numbers of lesions of one region."""

    found: int
    missed: int
    false: int

    @property
    def f1(self) -> float:
        """2 TP / (2 TP + FP + FN). NaN if nothing is to be found and nothing was marked; the caller applies the rules for that."""
        total = 2 * self.found + self.missed + self.false
        return 2 * self.found / total if total else float("nan")


@dataclass(frozen=True, kw_only=True)
class LesionScores:
    """The scores of one region."""

    means: Measures
    counts: Counts
    large: Counts | None = None
    """The lesions of at least `Rules.large_from_mm3`, which are found if their Dice is at least `Rules.detected_from`; `false` has
    all false ones. None if there are none, or if the rules know no sizes."""
    small: Counts | None = None
    """The same for smaller lesions."""


@dataclass(frozen=True, kw_only=True)
class Lesion:
    """A lesion of the truth, and how well the prediction matches it."""

    mm3: float
    measures: Measures
    matched: bool


def score(
    prediction: np.ndarray, truth: np.ndarray, rules: Rules, *, region: str, spacing_mm: Sequence[float], penalty_mm: float,
    distances: Distances,
) -> LesionScores:  # fmt: skip
    """The scores of a region. prediction, truth: components (X, Y, Z). penalty_mm: `rules.penalty_mm` on this grid."""
    missed = Measures(0.0, penalty_mm, 0.0, 0.0, 0.0)
    maps = _Maps(prediction, truth, spacing_mm=spacing_mm, missed=missed, distances=distances)
    if rules.matching == "one to one":
        lesions, false = _one_to_one(maps, by_geometry=rules.by_geometry)
    else:
        lesions, false = _by_dilation(maps, rules.reach(region), components.sizes_of(rules, spacing_mm))
        lesions = [lesion for lesion in lesions if lesion.mm3 > rules.smallest_mm3(region)]
    large, small = _by_size(lesions, false, rules)
    return LesionScores(
        means=_means(lesions, false, rules, missed), counts=_counted(lesions, false), large=large, small=small
    )


def _counted(lesions: Sequence[Lesion], false: int, least_dice: float = 0.0) -> Counts:
    found = sum(1 for lesion in lesions if lesion.matched and lesion.measures.dice >= least_dice)
    return Counts(found=found, missed=len(lesions) - found, false=false)


def _by_size(lesions: Sequence[Lesion], false: int, rules: Rules) -> tuple[Counts | None, Counts | None]:
    """The counts of the large lesions, and of the small ones."""
    if not rules.large_from_mm3:
        return None, None
    large = [lesion for lesion in lesions if lesion.mm3 >= rules.large_from_mm3]
    small = [lesion for lesion in lesions if lesion.mm3 < rules.large_from_mm3]
    of_large, of_small = (_counted(group, false, rules.detected_from) if group else None for group in (large, small))
    return of_large, of_small


def _means(lesions: Sequence[Lesion], false: int, rules: Rules, missed: Measures) -> Measures:
    if not lesions and not false:
        return PERFECT if rules.both_empty == "perfect" else UNDEFINED  # EMPTY-2
    large = [lesion for lesion in lesions if lesion.mm3 >= rules.large_from_mm3]
    if rules.large_from_mm3 and not large:
        return UNDEFINED
    if rules.false_positives_lower:
        return _mean([*(lesion.measures for lesion in large), *[missed] * false])
    pairs = [lesion.measures for lesion in lesions if lesion.matched]
    return _mean(pairs) if pairs else missed


def _mean(measures: Sequence[Measures]) -> Measures:
    return Measures(*map(float, np.mean(measures, axis=0)))


def _by_dilation(maps: _Maps, reach: int, sizes: Sequence[float]) -> tuple[list[Lesion], int]:
    """(lesions, number of false positives). A lesion is compared with the union of the predicted components that touch its
    dilation."""
    lesions: list[Lesion] = []
    used: set[int] = set()
    margins = components.steps(reach, sizes)
    prediction, truth = maps.labels
    for number, box in maps.true.items():
        near = tuple(
            slice(max(0, span.start - wider), span.stop + wider) for span, wider in zip(box, margins, strict=True)
        )
        grown = components.dilated(truth[near] == number, reach, sizes)
        touched = components.numbers(prediction[near][grown]).tolist()
        used.update(touched)
        lesions.append(maps.lesion(touched, number))
    return lesions, len(maps.predicted.keys() - used)


def _one_to_one(maps: _Maps, *, by_geometry: bool) -> tuple[list[Lesion], int]:
    """(lesions, number of predictions without a partner), by the assignment with the largest sum of Dice. by_geometry: of several,
    the one with the nearest surfaces; else the numbers of the components decide."""
    prediction, truth = maps.labels
    overlaps = _overlaps(prediction, truth)
    sizes = [np.bincount(labels[labels > 0], minlength=2)[1:] for labels in (truth, prediction)]
    scores = dice.dice(overlaps, np.add.outer(*sizes), both_empty=0.0)
    # As a cost, like panoptica's, so that the solver takes the same one of several equally good assignments.
    cost = np.where(scores >= LEAST_DICE, 1 - scores, 1 + LEAST_DICE)
    if by_geometry:
        cost += _TIE * _farness(maps, scores >= LEAST_DICE)
    rows, columns = linear_sum_assignment(cost)
    partners = {
        int(row) + 1: int(column) + 1 for row, column in zip(rows, columns, strict=True) if cost[row, column] < 1
    }
    lesions = [maps.lesion([partners[number]] if number in partners else [], number) for number in maps.true]
    return lesions, len(maps.predicted) - len(partners)


def _farness(maps: _Maps, overlapping: np.ndarray) -> np.ndarray:
    """How far the surfaces of pairs lie from each other, by all their measures, from -1 to 1, (true components, predicted ones); 0
    if there is no choice. overlapping: (true components, predicted ones) bool."""
    several = (overlapping.sum(axis=0) > 1) | (overlapping.sum(axis=1) > 1)[:, None]
    far = np.zeros(overlapping.shape)
    for row, column in np.argwhere(overlapping & several).tolist():
        found = maps.lesion([column + 1], row + 1).measures
        far[row, column] = found.hd95_mm - found.nsd_half_mm - found.nsd_one_mm - found.nsd_voxel
    return far / max(1.0, np.abs(far).max())


class _Maps:
    """The components of prediction and truth (X, Y, Z), and the box of each, since to compare whole volumes would be slow."""

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
        """The lesion of a true component and the predicted components that match it, which may be none."""
        prediction, lesion = self._masks(predicted, true)
        mm3 = round(np.count_nonzero(lesion) * self._voxel_mm3, components.ROUNDED)
        if not predicted:
            return Lesion(mm3=mm3, measures=self._missed, matched=False)
        measures = Measures(dice.of_masks(prediction, lesion, both_empty=np.nan), *self._distances(prediction, lesion))
        return Lesion(mm3=mm3, measures=measures, matched=True)

    def _masks(self, predicted: Sequence[int], true: int) -> tuple[np.ndarray, np.ndarray]:
        """The masks of some predicted components and of a true one, cut to a box that holds them all."""
        boxes = [self.true[true], *(self.predicted[number] for number in predicted)]
        box = tuple(
            slice(min(span.start for span in spans), max(span.stop for span in spans))
            for spans in zip(*boxes, strict=True)
        )
        prediction, truth = (labels[box] for labels in self.labels)
        return np.isin(prediction, predicted), truth == true


def _overlaps(prediction: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The numbers of voxels in common, (true components, predicted components)."""
    shape = (max(1, int(truth.max())), max(1, int(prediction.max())))
    counts = np.zeros(shape, np.int64)
    both = (truth > 0) & (prediction > 0)
    np.add.at(counts, (truth[both] - 1, prediction[both] - 1), 1)
    return counts
