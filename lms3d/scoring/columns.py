"""The columns of a segmentation score, by name: how they are measured, and how tables and box plots show them.

    @column("volume_error_ml", title="volume error ml", unit="ml", larger_is_better=False)
    def volume_error(prediction, truth, spacing_mm): ...

A column that is registered is measured, stored, summarised and tabulated with all others. Masks are (X, Y, Z) bool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lms3d.registry import Registry
from lms3d.scoring import masks

SPACES = ("native", "cube")
"""The grid of the files, and the cube of the network."""

Measure = Callable[[np.ndarray, np.ndarray, Sequence[float]], float]
"""(prediction, truth, voxel size of the native grid in mm) -> value."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One metric of one region of one case."""

    measure: Measure
    title: str
    """In the Markdown table and on the axis of a box plot."""
    unit: str = ""
    """Empty for a share of 1."""
    decimals: int = 3
    """In the Markdown table; CSV files have six."""
    larger_is_better: bool = True

    spaces: tuple[str, ...] = SPACES
    """Where it is measured. A column with a unit only in native space: a cube's voxels are no millimetres."""
    on_request: bool = False
    """Measured only where the caller asks for it by name: it is slow."""
    box_plot: bool = False


COLUMNS: Registry[Column] = Registry("metric column")
HEADLINE = "dice"
"""The column whose spread is summarised; of the others it is the mean."""


def column(name: str, **shown: Any) -> Callable[[Measure], Measure]:
    """Decorator: registers a measure as the column `name`; `shown`: fields of `Column`.

    ValueError where the name is taken, or a column with a unit asks for cube space.
    """
    native = ("native",)
    shown = {"spaces": native if shown.get("unit") else SPACES, **shown}
    if shown.get("unit") and tuple(shown["spaces"]) != native:
        raise ValueError(
            f"metric column {name!r}: measured in {shown['unit']}, so only in native space; leave `spaces` out"
        )

    def add(measure: Measure) -> Measure:
        COLUMNS.register(name)(Column(measure=measure, **shown))
        return measure

    return add


column("dice", title="Dice", box_plot=True)(lambda prediction, truth, _: masks.dice(prediction, truth))
column("sensitivity", title="sensitivity")(lambda prediction, truth, _: masks.sensitivity(prediction, truth))
column("specificity", title="specificity", decimals=4)(
    lambda prediction, truth, _: masks.specificity(prediction, truth)
)
column(
    "hd95_mm", title="HD95 mm", unit="mm", decimals=1, larger_is_better=False, on_request=True
)(masks.hausdorff95)  # fmt: skip
