"""Step ratio over the share of the memory, a panel for each link: results -> PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.links import machines
from experiments.links.report import Found, Row
from experiments.links.study import METHODS
from experiments.overhead.figure import MOST, STYLE, say_slower
from lms3d.scoring.figures.style import plain, plt, save


def draw(found: Sequence[Found], path: Path) -> Path | None:
    """A line of panels for each resolution. Filled: measured; hollow and dashed: predicted. None where there is nothing."""
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
    handles = {
        label: handle for axis in grid.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=most, frameon=False)
    return save(figure, path)


def _panel(axis: plt.Axes, found: Found, link: str) -> None:
    rows = found.rows(link)
    for method in METHODS:
        mine = [row for row in rows if row.result.part.method == method and row.share]
        colour, marker = STYLE[method]
        for found_of, style, label in (
            (_measured, {"linestyle": "-"}, method),
            (_predicted, {"linestyle": ":", "markerfacecolor": "none"}, f"{method}, predicted"),
        ):
            points = [(100 * (row.share or 0), ratio) for row in mine if (ratio := found_of(row))]
            if points:
                shown = [min(ratio, MOST) for _, ratio in points]
                axis.plot([x for x, _ in points], shown, color=colour, marker=marker, label=label, **style)
        say_slower(axis, [(100 * (row.share or 0), _measured(row) or _predicted(row) or 0) for row in mine], colour)
    axis.set(
        title=f"{machines.title(link)}\n{found.rates[link]['word']} here, {found.resolution}$^3$",
        xlabel="hard limit, or peak without one\n(% of the smallest without LMS)", ylabel="step time / without LMS",
    )  # fmt: skip
    axis.set_xlim(left=0)
    plain(axis)


def _measured(row: Row) -> float | None:
    return row.result.ratio


def _predicted(row: Row) -> float | None:
    return row.predicted_ratio if row.outcome in ("trained", "model only") else None
