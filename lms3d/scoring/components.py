"""The lesions of a mask: its 26-connected components, merged and cleaned as a challenge asks. Arrays are (X, Y, Z).

Components are numbered 1, 2, .. in the order of their first voxels, with the last axis fastest; 0 is background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import ndimage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lms3d.scoring.rules import Rules

_26 = ndimage.generate_binary_structure(3, 3)
_18 = ndimage.generate_binary_structure(3, 2)
"""The 18 neighbours that differ along at most two of the three axes."""

ROUNDED = 6
"""The decimals of a volume in mm³, so that 500 voxels of 0.1 mm³ are 50 mm³ and no more."""

LENGTH = 1e-5
"""The unit in which lengths are compared, as a part of the unit of voxel sizes. Most of these are multiples (`pair.DECIMALS`)."""
_FAR = 2**30
"""A length, in units of LENGTH, above that of any grid. Twice as much still is an int32."""

VOXELS = (1.0, 1.0, 1.0)
"""The voxel sizes with which lengths are in voxels."""


def connected(mask: np.ndarray) -> np.ndarray:
    """The components of a mask."""
    box = around(mask)  # the numbers do not depend on the empty rest
    labels = np.zeros(mask.shape, np.int32, order="F" if mask.flags.f_contiguous else "C")
    labels[box] = ndimage.label(mask[box], _26)[0]
    return labels


def numbers(labels: np.ndarray) -> np.ndarray:
    """The numbers of the components, sorted."""
    return np.flatnonzero(np.bincount(labels[labels > 0], minlength=1))


def steps(reach: float, sizes: Sequence[float]) -> tuple[int, ...]:
    """The number of voxels along each axis within `reach`. sizes: the sides of a voxel, in the unit of `reach`."""
    return tuple(int(reach / size + 1e-9) for size in sizes)


def dilated(mask: np.ndarray, reach: int, sizes: Sequence[float] = VOXELS) -> np.ndarray:
    """A mask (X, Y, Z) grown by `reach`, within its own grid.

    It grows by the shape that `reach` steps of the 18-connected element make at 1 mm: no coordinate is larger than `reach`, and the
    sum of the coordinates is at most twice that. sizes: the sides of a voxel, in the unit of `reach`.
    """
    margins = steps(reach, sizes)
    if not any(margins) or not mask.any():
        return mask
    inside = around(mask, margins)
    grown = np.zeros_like(mask)
    if tuple(sizes) == VOXELS:
        grown[inside] = _stepped(mask[inside], reach)
    else:
        grown[inside] = _within(mask[inside], reach, sizes)
    return grown


def _stepped(mask: np.ndarray, count: int) -> np.ndarray:
    """The mask after so many 18-connected steps. Only voxels at its edge are looked at: specks lie far apart in their box."""
    padded = np.pad(mask, 1)
    free = np.pad(~mask, 1).ravel()  # nothing grows beyond the grid
    edge = outermost(padded)
    for _ in range(count):
        reached = []
        for offset in _offsets(padded.shape):
            near = edge + offset
            near = near[free[near]]
            free[near] = False
            reached.append(near)
        edge = np.concatenate(reached)
    grown: np.ndarray = ~free.reshape(padded.shape)[1:-1, 1:-1, 1:-1]
    return grown


def outermost(padded: np.ndarray) -> np.ndarray:
    """The voxels of a mask that share a face with its outside, as indices of the flat array, ascending. padded: the mask with one
    voxel more on each side."""
    inside, places = padded.ravel(), np.flatnonzero(padded)
    hidden = np.ones(len(places), bool)
    for step in (padded[0].size, padded.shape[2], 1):
        hidden &= inside[places - step] & inside[places + step]
    return places[~hidden]


def _offsets(shape: Sequence[int]) -> list[int]:
    """The steps from a voxel to itself and its 18 neighbours, in a flat array of this shape."""
    offsets: list[int] = ((np.argwhere(_18) - 1) @ [shape[1] * shape[2], shape[2], 1]).tolist()
    return offsets


def _within(mask: np.ndarray, reach: float, sizes: Sequence[float]) -> np.ndarray:
    """The mask (X, Y, Z) that `dilated` returns. The time does not depend on the number of voxels within `reach`.

    A path goes along one axis after the other, along none further than `reach`, and its lengths add up. After each axis, each voxel
    has the length of the shortest path from the mask. Lengths are whole multiples of LENGTH, so that sums are exact.
    """
    lengths = np.where(mask, 0, _FAR).astype(np.int32)
    for axis, (size, most) in enumerate(zip(sizes, steps(reach, sizes), strict=True)):
        if most:
            lengths = _extended(lengths, axis, round(size / LENGTH), most)
    grown: np.ndarray = lengths <= round(2 * reach / LENGTH)
    return grown


def _extended(lengths: np.ndarray, axis: int, size: int, most: int) -> np.ndarray:
    """The smallest sum of a length up to `most` voxels away along an axis and the distance to it. size: that of a voxel.

    A slope added to the values stands for the distance. Then one minimum filter covers the voxels before a voxel, and another one
    those behind it.
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
    """The smallest box around a mask, wider by `margin` voxels (along each axis) as far as the grid goes. The whole grid if the
    mask is empty."""
    spans = []
    for axis, wider in enumerate(np.broadcast_to(margin, mask.ndim).tolist()):
        marked = np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        if not len(marked):
            return tuple(slice(0, size) for size in mask.shape)
        spans.append(slice(max(0, int(marked[0]) - wider), min(mask.shape[axis], int(marked[-1]) + 1 + wider)))
    return tuple(spans)


def merged_by_dilation(mask: np.ndarray, reach: int, sizes: Sequence[float] = VOXELS) -> np.ndarray:
    """The components of a mask. Components whose dilations touch are one."""
    box = around(mask, steps(reach, sizes))
    labels = np.zeros(mask.shape, np.int32)
    ndimage.label(dilated(mask[box], reach, sizes), _26, output=labels[box])
    labels[box] *= mask[box]
    return labels


def sizes_of(rules: Rules, spacing_mm: Sequence[float]) -> tuple[float, ...]:
    """The sizes of a voxel in the unit in which the rules dilate."""
    return tuple(spacing_mm) if rules.units.dilation == "mm" else VOXELS


def margins(rules: Rules, spacing_mm: Sequence[float]) -> tuple[int, ...]:
    """The number of voxels along each axis that a crop must leave around masks, so that it does not cut off a dilation."""
    return tuple(reach + 1 for reach in steps(rules.largest_reach, sizes_of(rules, spacing_mm)))


def lesions(
    masks: Mapping[str, np.ndarray], rules: Rules, *, predicted: bool, spacing_mm: Sequence[float] = VOXELS
) -> dict[str, np.ndarray]:
    """Region -> lesions, for every region of `masks`. predicted: whether the masks are of a prediction, not of the truth."""
    if rules.matching == "one to one":
        # Numbered with the first axis fastest, as the package of 2026 reads files: the numbers decide between equal assignments.
        return {region: connected(mask.T).T for region, mask in masks.items()}
    if predicted and not rules.clean_prediction:
        return {region: connected(mask) for region, mask in masks.items()}
    sizes = sizes_of(rules, spacing_mm)
    maps = {region: merged_by_dilation(mask, rules.reach(region), sizes) for region, mask in masks.items()}
    if predicted:
        of_voxel = float(np.prod(spacing_mm)) if rules.units.cleaning == "mm³" else 1.0
        maps = {region: _without_small(labels, rules.smallest_mm3(region), of_voxel) for region, labels in maps.items()}
    join = _joined_by_touch if rules.by_geometry else _joined
    return {
        region: join(labels, [maps[other] for other in rules.merge_touching.get(region, ()) if other in maps])
        for region, labels in maps.items()
    }


def _without_small(labels: np.ndarray, largest: float, of_voxel: float) -> np.ndarray:
    """The components larger than `largest`. of_voxel: the size of one voxel in the same unit."""
    counts = np.bincount(labels[labels > 0], minlength=1)
    kept = np.where(np.round(counts * of_voxel, ROUNDED) > largest, np.arange(len(counts)), 0).astype(labels.dtype)
    return _renumbered(labels, kept)


def _renumbered(labels: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The components under new numbers. table: (components + 1,), from old number to new, with 0 for 0. Background voxels, which
    are most, are not looked up."""
    new, inside = labels.copy(), labels > 0
    new[inside] = table[labels[inside]]
    return new


def _joined(labels: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Components of `labels` that touch the same component of another map become one, for one map after the other.

    As in the reference, a component goes with the first one that it touches, and a single touching pair changes nothing.
    """
    for other in others:
        pairs = touching(labels, other)
        if len(pairs) > 1:
            first: dict[int, int] = {}
            for component, neighbour in pairs:
                first.setdefault(component, neighbour)
            neighbours = dict.fromkeys(neighbour for _, neighbour in pairs)
            number = {neighbour: labels.max() + 1 + at for at, neighbour in enumerate(neighbours)}
            table = np.arange(labels.max() + 1)
            for component, neighbour in first.items():
                table[component] = number[neighbour]
            labels = _renumbered(labels, table)
    return labels


def _joined_by_touch(labels: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Components of `labels` become one if a path leads from one to the other, from touching component to touching component."""
    for other in others:
        pairs = np.array(touching(labels, other)).reshape(-1, 2)
        count, of_others = int(labels.max()), int(other.max())
        ends = pairs[:, 0], count + pairs[:, 1]
        graph = coo_array((np.ones(len(pairs)), ends), shape=(1 + count + of_others,) * 2)
        groups = connected_components(graph, directed=False)[1][1 : count + 1]
        _, numbers_of = np.unique(groups, return_inverse=True)
        labels = _renumbered(labels, np.append(0, 1 + numbers_of).astype(labels.dtype))
    return labels


def touching(labels: np.ndarray, other: np.ndarray) -> list[tuple[int, int]]:
    """(component of `labels`, component of `other`) for all pairs that overlap or are 18-neighbours, sorted."""
    inside, padded = labels > 0, np.pad(other, 1)
    places, beside, step = np.flatnonzero(np.pad(inside, 1)), padded.ravel(), int(other.max()) + 1
    own = labels[inside].astype(np.int64) * step
    codes: set[int] = set()
    for offset in _offsets(padded.shape):
        neighbours = beside[places + offset]
        pairs = (own + neighbours)[neighbours > 0]
        codes.update(np.unique(pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]).tolist())  # most equal the one before
    return sorted(divmod(code, step) for code in codes)
