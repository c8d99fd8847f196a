"""The box plot of a metric column: a panel for each region, a box for each set of predictions, a dot for each case.

Of more than MOST regions the worst are drawn, by their mean.

As in the LMS case study, the box spans the quartiles, the line is the median, the diamond the mean, and the whiskers reach the last
case within 1.5 times the box's height.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lms3d.scoring.columns import COLUMNS, HEADLINE
from lms3d.scoring.figures.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, in_lines, write_png_and_pdf

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
ACROSS, MOST = 8, 24  # panels in a row, and in all
LONGEST_TICK = 9  # characters; longer names go to a legend
_LETTER = 0.075  # the width of one in a title, in inches
REGION_TITLES = {"WT": "Whole tumour", "TC": "Tumour core", "ET": "Enhancing tumour"}
_PAPER = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "0.88",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,  # text stays text, as publishers ask
}


def draw(scores: pd.DataFrame, space: str, path: Path, *, column: str = HEADLINE) -> list[Path]:
    """Draws a column of the scores in one space. Writes `path` (.png, 300 dpi) and the same as .pdf, and returns both paths."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown, values = COLUMNS[column], scores[scores["space"] == space].rename(columns={column: "value"})
    regions, labels = _drawn(values, shown.larger_is_better), list(values["predictions"].unique())
    across, down = min(ACROSS, len(regions)), -(-len(regions) // ACROSS)
    with rc_context(_PAPER):
        width = max(1.7, 0.55 * len(labels) + 0.9)
        figure = Figure(figsize=(0.6 + width * across, 3.4 * down), layout="constrained")
        grid = figure.subplots(down, across, sharey=True, squeeze=False)
        panels = list(grid.flat)[: len(regions)]
        for panel in list(grid.flat)[len(regions) :]:
            panel.set_visible(False)
        for panel, region in zip(panels, regions, strict=True):
            of_region = values[values["region"] == region]
            groups = [of_region.loc[of_region["predictions"] == label, "value"].dropna() for label in labels]
            name = f"{REGION_TITLES[region]} ({region})" if region in REGION_TITLES else region
            _panel(panel, groups, labels, in_lines(name, int(width / _LETTER)))
        for first in grid[:, 0]:
            first.set_ylabel(shown.title)
        if not shown.unit:
            panels[0].set_ylim(min(0.8, np.floor(10 * values["value"].min()) / 10) - 0.015, 1.015)
        if max(map(len, labels)) > LONGEST_TICK:
            _name_below(figure, panels, labels)
        cases = values["case"].nunique()
        title = f"{shown.title} per case, {space} space, {cases} case{'s' if cases > 1 else ''}"
        left_out = values["region"].nunique() - len(regions)
        worst = f"; the {MOST} worst regions, {left_out} more in scores.csv" if left_out else ""
        figure.suptitle(title + worst, fontsize=10)
        return write_png_and_pdf(figure, path, dpi=300)


def _drawn(values: pd.DataFrame, larger_is_better: bool) -> list[str]:
    """The regions to draw, in their order."""
    means = values.groupby("region", sort=False)["value"].mean().sort_values(ascending=larger_is_better, kind="stable")
    worst = set(means.index[:MOST])
    return [region for region in values["region"].unique() if region in worst]


def _panel(panel: Any, groups: Sequence[Sequence[float]], labels: Sequence[str], title: str) -> None:
    """Draws the panel of one region: a box for each of `labels`, and a dot for every case."""
    boxes = panel.boxplot(
        groups,
        widths=0.55,
        patch_artist=True,
        showmeans=True,
        showfliers=False,  # every case is drawn below, outliers too
        medianprops={"color": "black", "linewidth": 1.4},
        meanprops={"marker": "D", "mfc": "white", "mec": "black", "markersize": 4.5, "zorder": 4},
        whiskerprops={"linewidth": 0.9},
        capprops={"linewidth": 0.9},
    )
    jitter = np.random.default_rng(0)  # the same dots at the same places in every figure
    for number, (box, group) in enumerate(zip(boxes["boxes"], groups, strict=True)):
        colour = _colour(number)
        box.set(facecolor=colour, alpha=0.45, linewidth=0.9)
        places = number + 1 + jitter.uniform(-0.13, 0.13, len(group))
        panel.scatter(places, group, s=9, color=colour, edgecolor="0.15", linewidth=0.4, zorder=3)
    panel.set_title(title, fontsize=9)
    panel.set_xticks(range(1, len(labels) + 1), labels)


def _name_below(figure: Any, panels: Sequence[Any], labels: Sequence[str]) -> None:
    """Replaces tick labels that would overlap by a legend."""
    from matplotlib.patches import Patch

    for panel in panels:
        panel.set_xticks([])
    patches = [Patch(facecolor=_colour(n), alpha=0.6, edgecolor="0.15", label=label) for n, label in enumerate(labels)]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(3, len(labels)), frameon=False)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
