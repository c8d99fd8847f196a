"""Distances between the surfaces of two masks, in mm, and what the field makes of them.

Three HD95s are in use. On the same masks they differ by millimetres:
  directed  the larger of the two 95th percentiles, from each surface to the other (MONAI, MetricsReloaded)
  pooled    the 95th percentile of both directions thrown together (medpy, panoptica, BraTS 2026)
  area      as directed, every piece of surface weighted with its area (DeepMind's surface-distance, BraTS 2023 and 2024)
The first two take the voxels of a mask that touch its outside by a face; the third takes corners of voxels and the areas of
marching cubes (Nikolov et al., arXiv:1809.04430). So does `nsd`, the share of both surfaces within a tolerance of the other;
`counted_nsd` counts surface voxels instead (nnU-Net, panoptica, BraTS from 2025).
Masks are (X, Y, Z) bool; nearest points come from a k-d tree, which is exact and ten times as fast as a distance transform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import ndimage
from scipy.spatial import cKDTree

KINDS = ("directed", "pooled", "area")
_CORNERS = 8


@dataclass(frozen=True)
class Distances:
    """From every point of one surface to the nearest of the other, ascending, and the weights of the points."""

    mm: np.ndarray
    """(N,)"""
    areas: np.ndarray
    """(N,) mm²; ones for a surface of voxels."""

    def percentile_by_area(self, share: float) -> float:
        """The distance within which `share` of the area lies; no interpolation, as in surface-distance."""
        total = np.cumsum(self.areas) / self.areas.sum()
        return float(self.mm[min(int(np.searchsorted(total, share)), len(self.mm) - 1)])


Pair = tuple[Distances, Distances]
"""From truth to prediction, and back."""


def of_voxels(prediction: np.ndarray, truth: np.ndarray, spacing_mm: Sequence[float]) -> Pair:
    """Between the surface voxels of two masks, neither of them empty."""
    points = [np.argwhere(mask & ~ndimage.binary_erosion(mask)) * np.asarray(spacing_mm, float) for mask in
              (truth, prediction)]  # fmt: skip
    return _both_ways(points, [np.ones(len(one)) for one in points])


def of_areas(prediction: np.ndarray, truth: np.ndarray, spacing_mm: Sequence[float]) -> Pair:
    """Between the surfaces of two masks, neither of them empty, at the corners of voxels."""
    # In float32, as headers hold sizes and scripts read them: where a share of the area is 95 % exactly, rounding decides.
    table = _areas(tuple(float(np.float32(size)) for size in spacing_mm))
    points, areas = [], []
    for mask in (truth, prediction):
        codes = _neighbours(mask)
        at = np.argwhere((codes != 0) & (codes != 255))
        points.append(at * np.asarray(spacing_mm, float))
        areas.append(table[codes[tuple(at.T)]])
    return _both_ways(points, areas)


def hd95(pair: Pair, kind: str) -> float:
    """The 95 % Hausdorff distance in mm; `pair` is of areas for the kind "area", else of voxels."""
    if kind == "area":
        return max(one.percentile_by_area(0.95) for one in pair)
    if kind == "pooled":
        return float(np.percentile(np.concatenate([one.mm for one in pair]), 95))
    return float(max(np.percentile(one.mm, 95) for one in pair))


def nsd(pair: Pair, tolerance_mm: float) -> float:
    """Normalised surface Dice: the area of both surfaces within the tolerance of the other, over the area of both."""
    within = sum(one.areas[one.mm <= tolerance_mm].sum() for one in pair)
    return float(within / sum(one.areas.sum() for one in pair))


def counted_nsd(pair: Pair, tolerance_mm: float) -> float:
    """The share of surface voxels within the tolerance of the other surface, the mean of both directions."""
    return float(np.mean([np.mean(one.mm <= tolerance_mm) for one in pair]))


def _both_ways(points: Sequence[np.ndarray], areas: Sequence[np.ndarray]) -> Pair:
    found = []
    for here, there in ((0, 1), (1, 0)):
        # Rounded: 10 steps of 0.1 mm are within a tolerance of 1 mm.
        mm = np.round(cKDTree(points[there]).query(points[here])[0], 9)
        order = np.lexsort((areas[here], mm))
        found.append(Distances(mm[order], areas[here][order]))
    return found[0], found[1]


def _neighbours(mask: np.ndarray) -> np.ndarray:
    """Mask (X, Y, Z) -> (X+1, Y+1, Z+1) uint8: which of the eight voxels around each corner it holds, a bit for each."""
    padded = np.pad(mask, 1).view(np.uint8)
    codes = np.zeros([size + 1 for size in mask.shape], np.uint8)
    for bit in range(_CORNERS):
        # The order of surface-distance's kernel, [[[128, 64], [32, 16]], [[8, 4], [2, 1]]], along x, y, z.
        x, y, z = (int(axis) for axis in np.unravel_index(_CORNERS - 1 - bit, (2, 2, 2)))
        part = padded[x : x + codes.shape[0], y : y + codes.shape[1], z : z + codes.shape[2]]
        codes |= part << bit
    return codes


@lru_cache(maxsize=64)
def _areas(spacing_mm: tuple[float, float, float]) -> np.ndarray:
    """(256,) mm²: area of the surface through the eight voxels around a corner, by their bits."""
    from surface_distance import lookup_tables

    areas: np.ndarray = lookup_tables.create_table_neighbour_code_to_surface_area(spacing_mm)
    return areas
