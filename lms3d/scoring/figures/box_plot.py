"""The Dice box plot: one panel per region, one box per predictions, one dot per case.

As in the LMS case study: the box spans the quartiles, the line is the median, the diamond the mean, whiskers reach the
last case within 1.5 times the box's height. Colours are those of Okabe and Ito, which colour-blind readers can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.files import replacing
from lms3d.scoring.scores import Record

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
LONGEST_TICK = 9  # characters; longer names go to a legend
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


def draw(records: Sequence[Record], space: str, path: Path, *, title: str = "") -> list[Path]:
    """Draw the records of one space; writes `path` (.png, 300 dpi) and the same as .pdf, and returns both."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    chosen = [record for record in records if record.space == space]
    regions = list(dict.fromkeys(record.region for record in chosen))
    labels = list(dict.fromkeys(record.predictions for record in chosen))
    with rc_context(_PAPER):
        width = max(1.7, 0.55 * len(labels) + 0.9)
        figure = Figure(figsize=(0.6 + width * len(regions), 3.4), layout="constrained")
        panels = figure.subplots(1, len(regions), sharey=True, squeeze=False)[0]
        for panel, region in zip(panels, regions, strict=True):
            _panel(panel, chosen, region, labels)
        panels[0].set_ylabel("Dice")
        lowest = min(record.dice for record in chosen)
        panels[0].set_ylim(min(0.8, np.floor(10 * lowest) / 10) - 0.015, 1.015)
        if max(map(len, labels)) > LONGEST_TICK:
            _name_below(figure, panels, labels)
        cases = len({record.case for record in chosen})
        figure.suptitle(title or f"Dice per case, {space} space, {cases} case{'s' if cases > 1 else ''}", fontsize=10)
        paths = [path.with_suffix(".png"), path.with_suffix(".pdf")]
        for one in paths:
            with replacing(one) as partial:
                figure.savefig(partial, dpi=300)
    return paths


def _panel(panel: Any, records: Sequence[Record], region: str, labels: Sequence[str]) -> None:
    """One region: a box for each of `labels`, and every case as a dot."""
    groups = [[r.dice for r in records if r.region == region and r.predictions == label] for label in labels]
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
    panel.set_title(f"{REGION_TITLES.get(region, region)} ({region})", fontsize=9)
    panel.set_xticks(range(1, len(labels) + 1), labels)


def _name_below(figure: Any, panels: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend in place of tick labels that would run into each other."""
    from matplotlib.patches import Patch

    for panel in panels:
        panel.set_xticks([])
    patches = [Patch(facecolor=_colour(n), alpha=0.6, edgecolor="0.15", label=label) for n, label in enumerate(labels)]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(3, len(labels)), frameon=False)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
