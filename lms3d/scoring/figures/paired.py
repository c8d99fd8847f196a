"""The paired differences of two predictions: a panel for each pair, a column for each region, a dot for each case.

The bar is the 95 % interval of the mean, and the band is the margin within which both count as equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lms3d.scoring import comparisons
from lms3d.scoring.columns import COLUMNS, HEADLINE
from lms3d.scoring.figures.style import BLUE, GREEN, GREY, plain, plt, write

ACROSS = 3


def draw(
    scores: pd.DataFrame, table: pd.DataFrame, units: comparisons.Units, path: Path, *, margin: float
) -> list[Path]:
    """Draws the differences. Writes `path` (.png) and the same as .pdf, and returns both paths. table: from `comparisons.table`."""
    pairs = list(dict.fromkeys(zip(table["first"], table["second"], strict=True)))
    down = -(-len(pairs) // ACROSS)
    across = min(ACROSS, len(pairs))
    figure, axes = plt.subplots(down, across, figsize=(4.2 * across, 3.6 * down), squeeze=False, layout="constrained")
    for axis, (first, second) in zip(axes.flat, pairs, strict=False):
        rows = table[(table["first"] == first) & (table["second"] == second)]
        _panel(axis, scores, rows.to_dict("records"), units, margin)
        axis.set(ylabel=f"difference in {COLUMNS[HEADLINE].title}")
        axis.set_title(f"{second} minus {first}", fontsize=10)
    for axis in axes.flat[len(pairs) :]:
        axis.set_visible(False)
    written = [path.with_suffix(".png"), path.with_suffix(".pdf")]
    for target in written:
        write(figure, target)
    plt.close(figure)
    return written


def _panel(axis: plt.Axes, scores: pd.DataFrame, rows: Sequence[dict], units: comparisons.Units, margin: float) -> None:
    jitter = np.random.default_rng(0)  # the same dots at the same places in every figure
    axis.axhspan(-margin, margin, color=GREEN, alpha=0.15, linewidth=0)
    axis.axhline(0, color=GREY, linewidth=0.8)
    for place, row in enumerate(rows):
        first, second = (
            comparisons.matrix(scores, units[row[unit]], space=row["space"], region=row["region"]).mean(axis=1)
            for unit in ("first", "second")
        )
        values = (second - first).dropna()
        axis.scatter(place + jitter.uniform(-0.2, 0.2, len(values)), values, s=12, color=BLUE, alpha=0.5, linewidth=0)
        axis.vlines(place, row["low"], row["high"], color="black", linewidth=2)
        axis.plot(place, row["difference"], "D", color="white", markeredgecolor="black", markersize=6)
    axis.set_xticks(range(len(rows)), [f"{row['region']}\n{_verdict(row)}" for row in rows], fontsize=7)
    axis.set_xlim(-0.6, len(rows) - 0.4)
    plain(axis)


def _verdict(row: Mapping[str, str]) -> str:
    """The verdict, with the names in the panel's title instead of "first" and "second", in two lines if it is long."""
    place, _, rest = row["verdict"].partition(" ")
    verdict = f"{row[place]} {rest}" if place in ("first", "second") else row["verdict"]
    return verdict.replace(f" {comparisons.ONE_SEED}", f"\n{comparisons.ONE_SEED}")
