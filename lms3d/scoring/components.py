"""Lesions of a mask: its 26-connected components, merged and cleaned as a challenge asks. Arrays are (X, Y, Z).

Components are numbered 1, 2, .. in the order of their first voxels, the last axis running fastest; 0 is background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import ndimage

from lms3d.scoring.rules import Rules

_26 = ndimage.generate_binary_structure(3, 3)
_18 = ndimage.generate_binary_structure(3, 2)
"""Two of three axes: 18 neighbours."""

ROUNDED = 6
"""Decimals of a volume in mm³: 500 voxels of 0.1 mm³ are 50 mm³, and no more."""

LENGTH = 1e-5
"""The unit of lengths that are compared, in that of voxel sizes: sizes are rounded to so much (`pair.DECIMALS`)."""
_FAR = 2**30
"""More of them than any grid is long, and twice as many still are an int32."""

VOXELS = (1.0, 1.0, 1.0)
"""Sizes that make a length one in voxels."""


def connected(mask: np.ndarray) -> np.ndarray:
    """Mask -> components."""
    box = around(mask)  # numbers do not depend on the empty rest
    found = np.zeros(mask.shape, np.int32, order="F" if mask.flags.f_contiguous else "C")
    found[box] = ndimage.label(mask[box], _26)[0]
    return found


def numbers(labels: np.ndarray) -> np.ndarray:
    """The components that there are, sorted."""
    return np.flatnonzero(np.bincount(labels[labels > 0], minlength=1))


def steps(reach: float, sizes: Sequence[float]) -> tuple[int, ...]:
    """How many voxels along each axis lie within `reach`; sizes: of a voxel, in the unit of `reach`."""
    return tuple(int(reach / size + 1e-9) for size in sizes)


def dilated(mask: np.ndarray, reach: int, sizes: Sequence[float] = VOXELS) -> np.ndarray:
    """`mask` (X, Y, Z) grown by `reach`, within its own grid.

    By the shape that so many steps of the 18-connected element make at 1 mm: no coordinate is further than `reach`, and their sum
    is at most twice as much. sizes: of a voxel, in the unit of `reach`.
    """
    margins = steps(reach, sizes)
    if not any(margins) or not mask.any():
        return mask
    inside = around(mask, margins)
    grown = np.zeros_like(mask)
    if tuple(sizes) == VOXELS:
        grown[inside] = ndimage.binary_dilation(mask[inside], _18, iterations=reach)
    else:
        grown[inside] = _within(mask[inside], reach, sizes)
    return grown


def _within(mask: np.ndarray, reach: float, sizes: Sequence[float]) -> np.ndarray:
    """What `dilated` grows `mask` (X, Y, Z) to. The time does not depend on how many voxels lie within `reach`.

    The lengths of a path along the axes, one after the other, add up: after an axis each voxel knows the shortest of the paths that
    took none further than `reach`. Lengths are whole numbers of LENGTH, so that sums are exact.
    """
    lengths = np.where(mask, 0, _FAR).astype(np.int32)
    for axis, (size, most) in enumerate(zip(sizes, steps(reach, sizes), strict=True)):
        if most:
            lengths = _extended(lengths, axis, round(size / LENGTH), most)
    grown: np.ndarray = lengths <= round(2 * reach / LENGTH)
    return grown


def _extended(lengths: np.ndarray, axis: int, size: int, most: int) -> np.ndarray:
    """The least of `lengths` up to `most` voxels away along an axis, each with the way to it; size: of a voxel.

    A slope turns the way into a part of the values: then a filter finds the least of those before a voxel, and another of those
    behind it.
    """
    slope = np.arange(lengths.shape[axis], dtype=np.int32) * np.int32(size)
    slope = slope.reshape([-1 if other == axis else 1 for other in range(lengths.ndim)])
    window, middle = most + 1, (most + 1) // 2
    before, behind = lengths - slope, lengths + slope
    for values, origin in ((before, most - middle), (behind, -middle)):
        ndimage.minimum_filter1d(values, window, axis, output=values, mode="nearest", origin=origin)
    before += slope
    behind -= slope
    return np.minimum(before, behind, out=before)


def around(mask: np.ndarray, margin: int | Sequence[int] = 0) -> tuple[slice, ...]:
    """The smallest box of a mask, wider by `margin` voxels (of each axis) as far as the grid goes; all of it for an empty mask."""
    spans = []
    for axis, wider in enumerate(np.broadcast_to(margin, mask.ndim).tolist()):
        hit = np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        if not len(hit):
            return tuple(slice(0, size) for size in mask.shape)
        spans.append(slice(max(0, int(hit[0]) - wider), min(mask.shape[axis], int(hit[-1]) + 1 + wider)))
    return tuple(spans)


def merged_by_dilation(mask: np.ndarray, reach: int, sizes: Sequence[float] = VOXELS) -> np.ndarray:
    """Components; those whose dilations touch are one."""
    box = around(mask, steps(reach, sizes))
    labels = np.zeros(mask.shape, np.int32)
    labels[box] = connected(dilated(mask[box], reach, sizes)) * mask[box]
    return labels


def sizes_of(rules: Rules, spacing_mm: Sequence[float]) -> tuple[float, ...]:
    """Of a voxel, in the unit of the dilations of `rules`."""
    return tuple(spacing_mm) if rules.units.dilation == "mm" else VOXELS


def margins(rules: Rules, spacing_mm: Sequence[float]) -> tuple[int, ...]:
    """Voxels along each axis that a crop must leave around masks: it must not stop a dilation that the grid does not stop."""
    return tuple(one + 1 for one in steps(rules.largest_reach, sizes_of(rules, spacing_mm)))


def lesions(
    masks: Mapping[str, np.ndarray], rules: Rules, *, predicted: bool, spacing_mm: Sequence[float] = VOXELS
) -> dict[str, np.ndarray]:
    """Region -> lesions of the truth, or of a prediction, for every region of `masks`."""
    if rules.matching == "one to one":
        # Numbered with the first axis fastest, as the package of 2026 reads files: it settles assignments of equal worth.
        return {region: connected(mask.T).T for region, mask in masks.items()}
    if predicted and not rules.clean_prediction:
        return {region: connected(mask) for region, mask in masks.items()}
    sizes = sizes_of(rules, spacing_mm)
    found = {region: merged_by_dilation(mask, rules.reach(region), sizes) for region, mask in masks.items()}
    if predicted:
        one = float(np.prod(spacing_mm)) if rules.units.cleaning == "mm³" else 1.0
        found = {region: _without_small(labels, rules.smallest_mm3(region), one) for region, labels in found.items()}
    return {
        region: _joined(labels, [found[other] for other in rules.merge_touching.get(region, ()) if other in found])
        for region, labels in found.items()
    }


def _without_small(labels: np.ndarray, largest: float, of_voxel: float) -> np.ndarray:
    """Components larger than `largest`; of_voxel: size of one voxel in that unit."""
    counts = np.bincount(labels[labels > 0], minlength=1)
    kept = np.where(np.round(counts * of_voxel, ROUNDED) > largest, np.arange(len(counts)), 0).astype(labels.dtype)
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
