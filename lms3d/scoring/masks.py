"""The masks (X, Y, Z) bool of a label map's regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def region_masks(labels: np.ndarray, regions: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Label map (X, Y, Z) -> one boolean mask (X, Y, Z) per region; a region is a union of label values."""
    if labels.dtype != np.uint8:
        return {name: np.isin(labels, values) for name, values in regions.items()}
    # One look-up per voxel, where `isin` compares with each value.
    return {name: np.isin(np.arange(256), values)[labels] for name, values in regions.items()}
