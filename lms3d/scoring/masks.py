"""Masks (X, Y, Z) bool of a label map, and the Dice of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def region_masks(labels: np.ndarray, regions: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Label map (X, Y, Z) -> one boolean mask (X, Y, Z) per region; a region is a union of label values."""
    if labels.dtype != np.uint8:
        return {name: np.isin(labels, values) for name, values in regions.items()}
    # One look-up per voxel, where `isin` compares with each value.
    return {name: np.isin(np.arange(256), values)[labels] for name, values in regions.items()}


def dice(prediction: np.ndarray, truth: np.ndarray) -> float:
    """2 |P and T| / (|P| + |T|) of two boolean masks; both empty 1, one empty 0."""
    total = np.count_nonzero(prediction) + np.count_nonzero(truth)
    return 2 * np.count_nonzero(prediction & truth) / total if total else 1.0
