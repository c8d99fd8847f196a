"""Distances between the surfaces of two masks, in mm, and the metrics made of them.

Three kinds of HD95 are in use. On the same masks they differ by millimetres:
  directed  the larger of the two 95th percentiles, from each surface to the other (MONAI, MetricsReloaded)
  pooled    the 95th percentile of the distances in both directions together (medpy, panoptica, BraTS 2026)
  area      as directed, but each piece of surface is weighted by its area (DeepMind's surface-distance, BraTS 2023 and 2024)
The first two use the voxels of a mask that share a face with its outside. The third uses the corners of voxels and the areas of
marching cubes (Nikolov et al., arXiv:1809.04430). So does `nsd`, the share of both surfaces within a tolerance of the other.
`counted_nsd` counts surface voxels instead (nnU-Net, panoptica, BraTS from 2025).
Masks are (X, Y, Z) bool. Nearest points come from a k-d tree, which is exact and ten times as fast as a distance transform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.spatial import cKDTree

from lms3d.scoring import components

KINDS = ("directed", "pooled", "area")
_CORNERS = 8
_DECIMALS = 9
"""The decimals of distances and tolerances, so that 10 steps of 0.1 mm are within a tolerance of 1 mm."""


@dataclass(frozen=True)
class Distances:
    """The distances from every point of one surface to the nearest point of the other, ascending, and the weights of the points."""

    mm: np.ndarray
    """The distances, (N,)."""
    areas: np.ndarray
    """The areas of the points, (N,) in mm²; ones for a surface of voxels."""

    def within(self, tolerance_mm: float) -> np.ndarray:
        """The points within the tolerance, (N,) bool."""
        near: np.ndarray = self.mm <= round(tolerance_mm, _DECIMALS)
        return near

    def percentile_by_area(self, share: float) -> float:
        """The distance within which `share` of the area lies, without interpolation, as in surface-distance."""
        total = np.cumsum(self.areas) / self.areas.sum()
        return float(self.mm[min(int(np.searchsorted(total, share)), len(self.mm) - 1)])


Pair = tuple[Distances, Distances]
"""The distances from truth to prediction, and from prediction to truth."""


def of_voxels(prediction: np.ndarray, truth: np.ndarray, spacing_mm: Sequence[float]) -> Pair:
    """The distances between the surface voxels of two masks, neither of which is empty."""
    points = [_surface(mask) * np.asarray(spacing_mm, float) for mask in (truth, prediction)]
    return _both_ways(points, [np.ones(len(surface)) for surface in points])


def _surface(mask: np.ndarray) -> np.ndarray:
    """The indices (N, 3) of the voxels of a mask that share a face with its outside."""
    padded = np.pad(mask, 1)
    return np.stack(np.unravel_index(components.outermost(padded), padded.shape), axis=-1) - 1


def of_areas(prediction: np.ndarray, truth: np.ndarray, spacing_mm: Sequence[float]) -> Pair:
    """The distances between the surfaces of two masks, neither of which is empty, at the corners of voxels."""
    # In float32, as headers hold sizes and scripts read them: if a share of the area is exactly 95 %, rounding decides.
    table = _areas(tuple(float(np.float32(size)) for size in spacing_mm))
    points, areas = [], []
    for mask in (truth, prediction):
        codes = _neighbours(mask)
        at = np.argwhere((codes != 0) & (codes != 255))
        points.append(at * np.asarray(spacing_mm, float))
        areas.append(table[codes[tuple(at.T)]])
    return _both_ways(points, areas)


def hd95(pair: Pair, kind: str) -> float:
    """The 95 % Hausdorff distance in mm. pair: from `of_areas` for the kind "area", otherwise from `of_voxels`."""
    if kind == "area":
        return max(distances.percentile_by_area(0.95) for distances in pair)
    if kind == "pooled":
        return float(np.percentile(np.concatenate([distances.mm for distances in pair]), 95))
    return float(max(np.percentile(distances.mm, 95) for distances in pair))


def nsd(pair: Pair, tolerance_mm: float) -> float:
    """The normalised surface Dice: the area of both surfaces within the tolerance of the other, over the area of both."""
    within = sum(distances.areas[distances.within(tolerance_mm)].sum() for distances in pair)
    return float(within / sum(distances.areas.sum() for distances in pair))


def counted_nsd(pair: Pair, tolerance_mm: float) -> float:
    """The share of surface voxels within the tolerance of the other surface, averaged over both directions."""
    return float(np.mean([np.mean(distances.within(tolerance_mm)) for distances in pair]))


def _both_ways(points: Sequence[np.ndarray], areas: Sequence[np.ndarray]) -> Pair:
    distances = []
    for source, target in ((0, 1), (1, 0)):
        mm = np.round(cKDTree(points[target]).query(points[source])[0], _DECIMALS)
        order = np.lexsort((areas[source], mm))
        distances.append(Distances(mm[order], areas[source][order]))
    return distances[0], distances[1]


def _neighbours(mask: np.ndarray) -> np.ndarray:
    """The voxels of a mask around each corner, as bits: (X, Y, Z) -> (X+1, Y+1, Z+1) uint8, one bit for each of eight voxels."""
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
    """The area of the surface through the eight voxels around a corner, by their bits, (256,) in mm²."""
    from surface_distance import lookup_tables

    areas: np.ndarray = lookup_tables.create_table_neighbour_code_to_surface_area(spacing_mm)
    return areas
