"""What the figures share: the look of each method, a legend for all panels, and ratios that are too large to be drawn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lms3d.experiments.harness import methods
from lms3d.scoring.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, plt

YELLOW = "#B8A900"
STYLE = {
    methods.NONE: (GREY, "s"),
    methods.KERAS: (GREY, "D"),
    methods.LMS: (BLUE, "o"),
    methods.COPIED: (BLUE, "d"),
    methods.TFLMS: (ORANGE, "^"),
    methods.SWAP_ALL: (GREEN, "v"),
    methods.RECOMPUTE_CHEAP: (PURPLE, "<"),
    methods.RECOMPUTE_ALL: (PURPLE, ">"),
    methods.KERAS_REMAT: (SKY, "P"),
    methods.RECOMPUTE_GRAD: (SKY, "X"),
    methods.TORCH: (VERMILION, "s"),
    methods.TORCH_CHECKPOINT: (VERMILION, "P"),
    methods.TORCH_SAVE_ON_CPU: (YELLOW, "v"),
    **{name: (VERMILION, "*") for name, way in methods.TORCH_METHODS.items() if way.mode},
    **{name: (YELLOW, "s") for name in methods.TORCH_METHODS if name.startswith(f"{methods.TORCH},")},
    methods.XLA: (GREY, "*"),
}
"""Method -> colour and marker."""

MOST = 3.0
"""A larger ratio is drawn here, with its value beside it: the others would lie in one line."""


def draw_ratios(
    axis: plt.Axes, points: Iterable[tuple[float, float]], label: str, method: str, *, with_values: bool = True, **look: Any
) -> None:  # fmt: skip
    """Step times relative to no LMS over something, in the look of the method; nothing without points. with_values: ratios that
    are too large to be drawn stand beside their points."""
    points = sorted(points)
    if not points:
        return
    colour, marker = STYLE[method]
    shown = [min(ratio, MOST) for _, ratio in points]
    axis.plot([x for x, _ in points], shown, color=colour, marker=marker, label=label, **look)
    for x, ratio in points:
        if ratio > MOST and with_values:
            text = f"{ratio:.1f} x \N{UPWARDS ARROW}"
            axis.annotate(text, (x, MOST), (7, 0), textcoords="offset points", va="center", color=colour)


def legend_below(figure: plt.Figure, axes: Iterable[plt.Axes], columns: int | None = None, **look: Any) -> None:
    """One legend below all panels, each label once. columns: as many as labels by default."""
    named = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if named:
        figure.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=columns or len(named), frameon=False, **look
        )
