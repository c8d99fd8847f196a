"""Memory against step time, all methods in one picture, a panel for each link: results -> PNG."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lms3d.experiments.harness import methods
from lms3d.experiments.harness.figure import STYLE, draw_ratios, legend_below
from lms3d.experiments.links import machines
from lms3d.experiments.overhead.results import MethodComparison, memory_bytes
from lms3d.scoring.figures.style import BLUE, plain, plt, save

GIB = 1 << 30
JOINED = (methods.LMS, methods.COPIED, methods.TFLMS)
"""Methods whose points a line joins: they were measured under several limits."""


def draw(places: Iterable[MethodComparison], path: Path) -> Path | None:
    """A line of panels for each place: over each of its links, or over this machine's tier with the whole process beside it. None:
    no data."""
    lines = [(here, panels) for here in places if (panels := _panels(here))]
    if not lines:
        return None
    most = max(len(panels) for _, panels in lines)
    figure, grid = plt.subplots(
        len(lines), most, figsize=(5.2 * most, 4.4 * len(lines)), layout="constrained", squeeze=False, sharey="row"
    )  # fmt: skip
    for axis in grid.flat:
        axis.set_visible(False)
    for axes, (here, panels) in zip(grid, lines, strict=True):
        for axis, link in zip(axes, panels, strict=False):
            axis.set_visible(True)
            if link is None:
                _process(axis, here)
            else:
                _tensors(axis, here, link)
            axis.set_xlim(left=0)
            plain(axis)
    legend_below(figure, grid.flat, 4)
    return save(figure, path)


def _panels(here: MethodComparison) -> list[str | None]:
    """The links; None is the memory of the whole process, which is known of PyTorch's steps, too."""
    if here.links:
        return [link for link in here.links if here.over(link)]
    return ["", None] if any(r.ratio for r in here.of(methods.LMS)) else []


def _tensors(axis: plt.Axes, here: MethodComparison, link: str) -> None:
    for method in STYLE:
        mine = [(100 * share, r) for r in here.of(method, link) if (share := here.share(memory_bytes(r)))]
        measured = [(share, r.ratio) for share, r in mine if r.ratio]
        look = "-" if method in JOINED else ""
        draw_ratios(axis, measured, method, method, linestyle=look)
        if link:
            predicted = [(share, q) for share, r in mine if r.trained and (q := r.predicted_ratio())]
            draw_ratios(
                axis, predicted, f"{method}, predicted", method, with_values=not measured, linestyle=":", markerfacecolor="none"
            )  # fmt: skip
    smallest, without = here.smallest_mib(methods.LMS), here.smallest_mib(methods.NONE)
    if smallest and without and not link:
        axis.axvline(100 * smallest / without, color=BLUE, linestyle=":", linewidth=1, label="smallest limit with LMS")
    over = f"\n{machines.title(link)}: {here.word(link)} here" if link else ""
    axis.set(
        title=f"{here.model} at {here.resolution}$^3${over}", ylabel="step time / step time without LMS",
        xlabel="hard limit, or peak if there is none\n(% of the smallest limit without LMS)",
    )  # fmt: skip


def _process(axis: plt.Axes, here: MethodComparison) -> None:
    for method in STYLE:
        points = [(r.resident_bytes / GIB, r.ratio) for r in here.of(method) if r.resident_bytes and r.ratio]
        draw_ratios(axis, points, method, method, linestyle="-" if method in JOINED else "")
    axis.set(title="The whole process, PyTorch included", xlabel="resident memory above the imported framework (GiB)")
