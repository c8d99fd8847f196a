"""Lesion-wise scores of one region: every true lesion against what was predicted for it.

With dilation (2023, 2024): lesions that are found or missed, and predicted components that touch no lesion, each with a share of 1
in the mean. Dice = sum over lesions / (lesions + false positives), and so HD95 with the penalty for what is missed or false.
One to one (2026): means over the pairs alone; what has no partner is in F1 = 2 TP / (2 TP + FP + FN). See `rules.Rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

from lms3d.scoring import components, masks
from lms3d.scoring.rules import Rules

LEAST_DICE = 1e-6
"""Of a pair that may match one to one."""

Distance = Callable[[np.ndarray, np.ndarray], float]
"""(prediction, truth), neither empty -> HD95 in mm."""


@dataclass(frozen=True, kw_only=True)
class LesionScores:
    """NaN where a number is not defined."""

    dice: float
    hd95_mm: float
    found: int
    missed: int
    false: int

    @property
    def f1(self) -> float:
        """NaN where there is nothing to find and nothing was marked: the caller knows what the rules make of it."""
        total = 2 * self.found + self.missed + self.false
        return 2 * self.found / total if total else float("nan")


@dataclass(frozen=True, kw_only=True)
class Lesion:
    """One of the truth, and what was predicted for it."""

    voxels: int
    dice: float
    hd95_mm: float
    matched: bool


def score(
    prediction: np.ndarray, truth: np.ndarray, rules: Rules, *, region: str, voxel_mm3: float, penalty_mm: float,
    distance: Distance,
) -> LesionScores:  # fmt: skip
    """Components of prediction and truth (X, Y, Z) -> scores. penalty_mm: `rules.penalty_mm` on this grid."""
    if rules.matching == "one to one":
        lesions, false = _one_to_one(prediction, truth, penalty_mm, distance)
        counted = lesions
    else:
        lesions, false = _by_dilation(prediction, truth, rules.dilation_voxels(region), penalty_mm, distance)
        counted = [one for one in lesions if one.voxels * voxel_mm3 > rules.smallest_mm3(region)]
    found = sum(one.matched and one.dice >= rules.detected_from for one in counted)
    dice, hd95_mm = _means(counted, false, rules, penalty_mm)
    return LesionScores(dice=dice, hd95_mm=hd95_mm, found=found, missed=len(counted) - found, false=false)


def _means(lesions: list[Lesion], false: int, rules: Rules, penalty_mm: float) -> tuple[float, float]:
    """Lesion-wise Dice and HD95."""
    if not lesions and not false:
        return (1.0, 0.0) if rules.both_empty == "perfect" else (float("nan"), float("nan"))
    large = [one for one in lesions if one.voxels >= rules.large_from_voxels]
    if rules.large_from_voxels and not large:
        return float("nan"), float("nan")
    if rules.false_positives_lower:
        total = len(large) + false
        return (
            sum(one.dice for one in large) / total,
            (sum(one.hd95_mm for one in large) + false * penalty_mm) / total,
        )
    pairs = [one for one in lesions if one.matched]
    if not pairs:
        return 0.0, penalty_mm
    return float(np.mean([one.dice for one in pairs])), float(np.mean([one.hd95_mm for one in pairs]))


def _by_dilation(
    prediction: np.ndarray, truth: np.ndarray, voxels: int, penalty_mm: float, distance: Distance
) -> tuple[list[Lesion], int]:
    """Every lesion with the union of the predicted components that touch its dilation; and the false positives."""
    lesions: list[Lesion] = []
    used: set[int] = set()
    maps = _Maps(prediction, truth)
    for number, box in maps.true.items():
        near = tuple(slice(max(0, one.start - voxels), one.stop + voxels) for one in box)
        reach = components.dilated(truth[near] == number, voxels)
        touched = components.numbers(prediction[near][reach]).tolist()
        used.update(touched)
        lesions.append(_lesion(*maps.masks(touched, number), penalty_mm, distance))
    return lesions, len(maps.predicted.keys() - used)


def _one_to_one(
    prediction: np.ndarray, truth: np.ndarray, penalty_mm: float, distance: Distance
) -> tuple[list[Lesion], int]:
    """The assignment with the largest sum of Dice (a linear sum assignment); and the predictions without a partner."""
    overlaps = _overlaps(prediction, truth)
    sizes = [np.bincount(labels[labels > 0], minlength=2)[1:] for labels in (truth, prediction)]
    dice = 2 * overlaps / np.maximum(np.add.outer(*sizes), 1)
    # As a cost, like panoptica's: of assignments that are equally good the solver then takes the same.
    cost = np.where(dice >= LEAST_DICE, 1 - dice, 1 + LEAST_DICE)
    rows, columns = linear_sum_assignment(cost)
    partners = {
        int(row) + 1: int(column) + 1 for row, column in zip(rows, columns, strict=True) if cost[row, column] < 1
    }
    maps = _Maps(prediction, truth)
    lesions = [
        _lesion(*maps.masks([partners[number]] if number in partners else [], number), penalty_mm, distance)
        for number in maps.true
    ]
    return lesions, len(maps.predicted) - len(partners)


class _Maps:
    """Components of prediction and truth (X, Y, Z), and the box of each: whole volumes would be slow to compare."""

    def __init__(self, prediction: np.ndarray, truth: np.ndarray) -> None:
        self.labels = prediction, truth
        self.predicted, self.true = (
            {number: box for number, box in enumerate(ndimage.find_objects(labels), start=1) if box is not None}
            for labels in self.labels
        )

    def masks(self, predicted: Sequence[int], true: int) -> tuple[np.ndarray, np.ndarray]:
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


def _lesion(prediction: np.ndarray, truth: np.ndarray, penalty_mm: float, distance: Distance) -> Lesion:
    """Masks (X, Y, Z) of a lesion and of what was predicted for it, which may be nothing."""
    matched = bool(prediction.any())
    return Lesion(
        voxels=int(np.count_nonzero(truth)), dice=masks.dice(prediction, truth), matched=matched,
        hd95_mm=distance(prediction, truth) if matched else penalty_mm,
    )  # fmt: skip
