"""The paired differences of two predictions: a panel for each pair, a column for each region, a dot for each case.

The bar is the 95 % interval of the mean, and the band is the margin within which both count as equal. If there are
more than MOST regions, the largest differences are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lms3d.scoring import comparisons
from lms3d.scoring.columns import COLUMNS, HEADLINE
from lms3d.scoring.figures.style import BLUE, GREEN, GREY, in_lines, plain, plt, write_png_and_pdf

ACROSS, MOST = 3, 24  # panels in a row, and regions in a panel
_FEW, _COLUMN = 6, 0.5  # regions with names side by side, and the width of a column in inches if there are more
_LINE = 24  # characters of a region's name in a line


def draw(
    scores: pd.DataFrame, table: pd.DataFrame, units: comparisons.Units, path: Path, *, margin: float
) -> list[Path]:
    """Draws the differences. Writes `path` (.png) and the same as .pdf, and returns both paths. table: from `comparisons.table`."""
    pairs = list(dict.fromkeys(zip(table["first"], table["second"], strict=True)))
    parts = [table[(table["first"] == first) & (table["second"] == second)] for first, second in pairs]
    most = min(MOST, max(map(len, parts), default=0))
    width, height = (4.2, 3.6) if most <= _FEW else (max(4.2, _COLUMN * most), 4.8)
    across = min(ACROSS if most <= _FEW else 1, len(pairs))
    down = -(-len(pairs) // across)
    size = (width * across, height * down)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    for axis, part, (first, second) in zip(axes.flat, parts, pairs, strict=False):
        rows = _drawn(part)
        _panel(axis, scores, rows.to_dict("records"), units, margin)
        axis.set(ylabel=f"difference in {COLUMNS[HEADLINE].title}")
        left_out = len(part) - len(rows)
        largest = f"; the {MOST} largest differences, {left_out} more in comparison.csv" if left_out else ""
        axis.set_title(f"{second} minus {first}{largest}", fontsize=10)
    for axis in axes.flat[len(pairs) :]:
        axis.set_visible(False)
    written = write_png_and_pdf(figure, path)
    plt.close(figure)
    return written


def _drawn(table: pd.DataFrame) -> pd.DataFrame:
    """The rows to draw, in their order."""
    largest = table["difference"].abs().sort_values(ascending=False, kind="stable").index[:MOST]
    return table[table.index.isin(largest)]


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
    names = [f"{in_lines(row['region'], _LINE)}\n{_verdict(row)}" for row in rows]
    axis.set_xticks(range(len(rows)), names, fontsize=7, rotation=0 if len(rows) <= _FEW else 90)
    axis.set_xlim(-0.6, len(rows) - 0.4)
    plain(axis)


def _verdict(row: Mapping[str, str]) -> str:
    """The verdict, with the names in the panel's title instead of "first" and "second", in three lines if it is long."""
    place, _, rest = row["verdict"].partition(" ")
    verdict = f"{row[place]} {rest}" if place in ("first", "second") else row["verdict"]
    return verdict.replace(f" {comparisons.ONE_SEED}", "\n" + comparisons.ONE_SEED.replace(" (", "\n("))
