"""Dice, sensitivity, specificity and HD95 of two masks (X, Y, Z) bool, as the BraTS challenge defines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

HD95_ONE_EMPTY_MM = 373.13
"""The diagonal of the 240x240x155 mm grid: what BraTS gives when one of the two masks is empty."""


def region_masks(labels: np.ndarray, regions: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Label map (X, Y, Z) -> one boolean mask (X, Y, Z) per region; a region is a union of label values."""
    return {name: np.isin(labels, values) for name, values in regions.items()}


def dice(prediction: np.ndarray, truth: np.ndarray) -> float:
    """2 |P and T| / (|P| + |T|) of two boolean masks; both empty 1, one empty 0."""
    total = np.count_nonzero(prediction) + np.count_nonzero(truth)
    return 2 * np.count_nonzero(prediction & truth) / total if total else 1.0


def sensitivity(prediction: np.ndarray, truth: np.ndarray) -> float:
    """Share of the truth that was found, |P and T| / |T|; 1 where there is nothing to find."""
    positives = np.count_nonzero(truth)
    return np.count_nonzero(prediction & truth) / positives if positives else 1.0


def specificity(prediction: np.ndarray, truth: np.ndarray) -> float:
    """Share of the rest that was not marked, |not P and not T| / |not T|; 1 where truth is everywhere."""
    negatives = truth.size - np.count_nonzero(truth)
    return np.count_nonzero(~(prediction | truth)) / negatives if negatives else 1.0


def hausdorff95(prediction: np.ndarray, truth: np.ndarray, spacing_mm: Sequence[float] = (1, 1, 1)) -> float:
    """The larger 95th percentile of the distances between both surfaces, in mm; smaller is better.

    Both empty: 0; one empty: the grid diagonal. Surfaces are the voxels of a mask that touch its outside by a face.
    """
    if not prediction.any() or not truth.any():
        return 0.0 if prediction.any() == truth.any() else HD95_ONE_EMPTY_MM
    from scipy import ndimage

    def surface_distances(start: np.ndarray, goal: np.ndarray) -> np.ndarray:
        return ndimage.distance_transform_edt(~goal, sampling=spacing_mm)[start]

    box = _box_around(prediction | truth)
    surfaces = [mask[box] & ~ndimage.binary_erosion(mask[box]) for mask in (prediction, truth)]
    return float(max(np.percentile(surface_distances(a, b), 95) for a, b in (surfaces, surfaces[::-1])))


def _box_around(mask: np.ndarray) -> tuple[slice, ...]:
    """The smallest box of a non-empty mask; distances between voxels inside do not depend on the outside."""
    spans = []
    for axis in range(mask.ndim):
        hit = np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        spans.append(slice(int(hit[0]), int(hit[-1]) + 1))
    return tuple(spans)
