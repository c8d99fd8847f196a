"""The size of voxels and the shapes in a data set, from the headers of its images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from nibabel.affines import voxel_sizes

from lms3d.data.errors import DataError
from lms3d.data.volumes.case import Case, header_of

Spacing = tuple[float, float, float]
THICK = 3.0
"""An axis is anisotropic if its voxels are this many times as long as on the other axes, and it has as many times fewer."""
_DIGITS = 4  # of a spacing in mm: the name of a cache holds it


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The grids of some cases, (cases, 3) each."""

    shapes: np.ndarray
    """The numbers of voxels."""
    spacings_mm: np.ndarray

    def stretched_mm(self, shape: Sequence[int]) -> Spacing:
        """The median size of a voxel, if every case is stretched to `shape`."""
        return _rounded(np.median(self.shapes * self.spacings_mm, axis=0) / np.array(shape))


def sizes(cases: Sequence[Case]) -> Sizes:
    """The grids of the cases whose header can be read; reading the others reports why not. DataError if none can be."""
    found = []
    first: DataError | None = None
    for case in cases:
        try:
            header = header_of(case)
            found.append((header.shape[:3], voxel_sizes(header.affine)))
        except DataError as error:
            first = first or error
    if not found:
        raise first or DataError("cases: found none; expected at least one; give the folder of a data set")
    shapes, spacings = zip(*found, strict=True)
    return Sizes(shapes=np.array(shapes), spacings_mm=np.array(spacings))


def target(of: Sizes) -> Spacing:
    """The spacing in mm to which nnU-Net resamples: on each axis the median; on an axis of thick slices the 10th percentile, but no
    finer than the other axes, since interpolation between thick slices invents what it shows.

    Isensee et al., Nature Methods 2021, "target spacing". Shapes are taken from the files, before any crop.
    """
    wanted = np.median(of.spacings_mm, axis=0)
    shape = np.median(of.shapes, axis=0)
    worst = int(np.argmax(wanted))
    others = [axis for axis in range(3) if axis != worst]
    thick = wanted[worst] > THICK * wanted[others].max()
    if thick and shape[worst] * THICK < shape[others].min():
        finer = np.percentile(of.spacings_mm[:, worst], 10)
        wanted[worst] = max(finer, wanted[others].max())
    return _rounded(wanted)


def _rounded(spacing: np.ndarray) -> Spacing:
    a, b, c = (round(float(mm), _DIGITS) for mm in spacing)
    return a, b, c
