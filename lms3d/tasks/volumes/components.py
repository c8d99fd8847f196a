"""Removes small parts of predicted tumours and organs, which are mostly mistakes: on request, never by default."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import ndimage


def without_small(labels: np.ndarray, tumour: Sequence[int], least_voxels: float) -> np.ndarray:
    """The label map (X, Y, Z) without connected parts of the tumour that have fewer than `least_voxels` voxels.

    tumour: the label values of the whole tumour. Voxels that share a face, an edge or a corner are connected.
    """
    parts, count = ndimage.label(np.isin(labels, tumour), np.ones((3, 3, 3)))
    sizes = np.bincount(parts.ravel(), minlength=count + 1)
    small = sizes < least_voxels
    small[0] = False  # background
    return np.where(small[parts], np.zeros((), labels.dtype), labels)


def without_small_of_each(labels: np.ndarray, least_voxels: float) -> np.ndarray:
    """The label map (X, Y, Z) without connected parts of any label that have fewer than `least_voxels` voxels."""
    cleaned = labels.copy()
    for value, box in enumerate(ndimage.find_objects(labels), start=1):
        if box is not None:
            part = labels[box]
            cleaned[box][(part == value) & (without_small(part, (value,), least_voxels) != value)] = 0
    return cleaned
