"""Lesions of a mask: its 26-connected components, merged and cleaned as a challenge asks. Arrays are (X, Y, Z).

Components are numbered 1, 2, .. in the order of their first voxels, the last axis running fastest; 0 is background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import ndimage

from lms3d.scoring.rules import SPACING_18, Rules

_26 = ndimage.generate_binary_structure(3, 3)
_18 = ndimage.generate_binary_structure(3, SPACING_18)


def connected(mask: np.ndarray) -> np.ndarray:
    """Mask -> components."""
    box = around(mask)  # numbers do not depend on the empty rest
    found = np.zeros(mask.shape, np.int32, order="F" if mask.flags.f_contiguous else "C")
    found[box] = ndimage.label(mask[box], _26)[0]
    return found


def numbers(labels: np.ndarray) -> np.ndarray:
    """The components that there are, sorted."""
    return np.flatnonzero(np.bincount(labels[labels > 0], minlength=1))


def dilated(mask: np.ndarray, voxels: int) -> np.ndarray:
    """`mask` grown by `voxels` steps of the 18-connected element, within its own grid."""
    if not voxels or not mask.any():
        return mask
    inside = around(mask, voxels)
    grown = np.zeros_like(mask)
    grown[inside] = ndimage.binary_dilation(mask[inside], _18, iterations=voxels)
    return grown


def around(mask: np.ndarray, margin: int = 0) -> tuple[slice, ...]:
    """The smallest box of a mask, wider by `margin` voxels as far as the grid goes; all of it for an empty mask."""
    spans = []
    for axis in range(mask.ndim):
        hit = np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        if not len(hit):
            return tuple(slice(0, size) for size in mask.shape)
        spans.append(slice(max(0, int(hit[0]) - margin), min(mask.shape[axis], int(hit[-1]) + 1 + margin)))
    return tuple(spans)


def merged_by_dilation(mask: np.ndarray, voxels: int) -> np.ndarray:
    """Components; those whose dilations touch are one."""
    box = around(mask, voxels)
    labels = np.zeros(mask.shape, np.int32)
    labels[box] = connected(dilated(mask[box], voxels)) * mask[box]
    return labels


def lesions(masks: Mapping[str, np.ndarray], rules: Rules, *, predicted: bool) -> dict[str, np.ndarray]:
    """Region -> lesions of the truth, or of a prediction, for every region of `masks`."""
    if rules.matching == "one to one":
        # Numbered with the first axis fastest, as the package of 2026 reads files: it settles assignments of equal worth.
        return {region: connected(mask.T).T for region, mask in masks.items()}
    if predicted and not rules.clean_prediction:
        return {region: connected(mask) for region, mask in masks.items()}
    found = {region: merged_by_dilation(mask, rules.dilation_voxels(region)) for region, mask in masks.items()}
    if predicted:
        found = {region: _without_small(labels, rules.smallest_mm3(region)) for region, labels in found.items()}
    return {
        region: _joined(labels, [found[other] for other in rules.merge_touching.get(region, ()) if other in found])
        for region, labels in found.items()
    }


def _without_small(labels: np.ndarray, largest: float) -> np.ndarray:
    """Components of more than `largest` voxels; the reference counts voxels here and mm³ elsewhere."""
    counts = np.bincount(labels[labels > 0], minlength=1)
    kept = np.where(counts > largest, np.arange(len(counts)), 0).astype(labels.dtype)
    return _renumbered(labels, kept)


def _renumbered(labels: np.ndarray, table: np.ndarray) -> np.ndarray:
    """table: (components + 1,), old number -> new, 0 -> 0. Most voxels are background, and not looked up."""
    new, inside = labels.copy(), labels > 0
    new[inside] = table[labels[inside]]
    return new


def _joined(labels: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Components of `labels` that touch the same component of another map become one; one map after the other.

    As in the reference, each goes with the first that it touches, and a single touching pair changes nothing.
    """
    for other in others:
        pairs = touching(labels, other)
        if len(pairs) > 1:
            first: dict[int, int] = {}
            for one, its_neighbour in pairs:
                first.setdefault(one, its_neighbour)
            number = {
                its_neighbour: labels.max() + 1 + at
                for at, its_neighbour in enumerate(dict.fromkeys(b for _, b in pairs))
            }
            table = np.arange(labels.max() + 1)
            for one, its_neighbour in first.items():
                table[one] = number[its_neighbour]
            labels = _renumbered(labels, table)
    return labels


def touching(labels: np.ndarray, other: np.ndarray) -> list[tuple[int, int]]:
    """(component of `labels`, component of `other`) for all that overlap or are 18-neighbours, sorted."""
    near = (labels > 0) & dilated(other > 0, 1)
    places = np.argwhere(near) + 1
    beside, step = np.pad(other, 1), int(other.max()) + 1
    found: set[int] = set()
    for shift in np.argwhere(_18) - 1:
        met = beside[tuple((places + shift).T)]
        pairs = labels[near].astype(np.int64) * step + met
        found.update(np.unique(pairs[met > 0]).tolist())
    return sorted(divmod(pair, step) for pair in found)
