"""Step ratio over the share of the memory, a panel for each link: results -> PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lms3d.experiments.harness.figure import draw_ratios, legend_below
from lms3d.experiments.links import machines
from lms3d.experiments.links.report import Found, Row
from lms3d.experiments.links.study import METHODS
from lms3d.scoring.figures.style import plain, plt, save


def draw(found: Sequence[Found], path: Path) -> Path | None:
    """A line of panels for each resolution. Filled: measured; hollow and dashed: predicted. None if there is nothing to draw."""
    lines = [one for one in found if any(one.rows(name) for name in one.links)]
    if not lines:
        return None
    most = max(len(one.links) for one in lines)
    figure, grid = plt.subplots(
        len(lines), most, figsize=(4.2 * most, 4.2 * len(lines)), layout="constrained", squeeze=False, sharey=True
    )  # fmt: skip
    for axis in grid.flat:
        axis.set_visible(False)
    for axes, one in zip(grid, lines, strict=True):
        for axis, name in zip(axes, one.links, strict=False):
            axis.set_visible(True)
            _panel(axis, one, name)
    legend_below(figure, grid.flat, most)
    return save(figure, path)


def _panel(axis: plt.Axes, found: Found, link: str) -> None:
    for method in METHODS:
        mine = [row for row in found.rows(link) if row.result.part.method == method and row.share]
        for ratio_of, label, look in (
            (_measured, method, {"linestyle": "-"}),
            (_predicted, f"{method}, predicted", {"linestyle": ":", "markerfacecolor": "none"}),
        ):
            points = [(100 * (row.share or 0), ratio) for row in mine if (ratio := ratio_of(row))]
            both = ratio_of is _predicted and any(_measured(row) for row in mine)
            draw_ratios(axis, points, label, method, with_values=not both, **look)
    axis.set(
        title=f"{machines.title(link)}\n{found.rates[link]['word']} here, {found.resolution}$^3$",
        xlabel="hard limit, or peak without one\n(% of the smallest without LMS)", ylabel="step time / without LMS",
    )  # fmt: skip
    axis.set_xlim(left=0)
    plain(axis)


def _measured(row: Row) -> float | None:
    return row.result.ratio


def _predicted(row: Row) -> float | None:
    return row.result.predicted_ratio() if row.outcome in ("trained", "model only") else None
