"""The grid that options choose."""

from __future__ import annotations

from collections.abc import Sequence

from lms3d.data.errors import DataError
from lms3d.data.segmentation import spacing
from lms3d.data.segmentation.grid import Grid
from lms3d.data.segmentation.spacing import Spacing
from lms3d.data.volumes.case import Case
from lms3d.data.volumes.geometry import Shape

MEDIAN = "median"
CUBE = 128
_MOST_MM = 1000.0  # of a voxel, as in `lms3d.cli.spacing`


def grid(
    cases: Sequence[Case], resolution: int | None, box: Shape | None, text: str | None, *, anti_alias: bool
) -> Grid:
    """A box of a spacing; a spacing alone; without both a cube. text: a spacing "0.8x0.8x2.5", or MEDIAN."""
    if box is None and text is None:
        return Grid(shape=(CUBE if resolution is None else resolution,) * 3, anti_alias=anti_alias)
    return Grid(shape=box, stretched=False, spacing_mm=_spacing(text or MEDIAN, cases), anti_alias=anti_alias)


def _spacing(text: str, cases: Sequence[Case]) -> Spacing:
    if text == MEDIAN:
        return spacing.target(spacing.sizes(cases))
    try:
        a, b, c = map(float, text.lower().split("x"))
    except ValueError:
        a = b = c = 0.0
    if not all(0 < mm < _MOST_MM for mm in (a, b, c)):
        raise DataError(f"--spacing: found {text!r}; expected three sizes in mm, or {MEDIAN}; write 0.8x0.8x2.5")
    return a, b, c
