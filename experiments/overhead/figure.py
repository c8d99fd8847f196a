"""Memory against step time, all methods in one picture: results -> PNG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lms3d.experiments.harness import methods
from lms3d.experiments.harness.figure import STYLE, draw_ratios, legend_below
from lms3d.experiments.harness.part import Result
from lms3d.experiments.overhead.promises import STEP_RATIOS
from lms3d.experiments.overhead.results import Comparison, memory_bytes
from lms3d.scoring.figures.style import BLUE, VERMILION, plain, plt, save

GIB = 1 << 30
JOINED = (methods.LMS, methods.COPIED, methods.TFLMS)
"""Methods whose points a line joins: they were measured under several limits."""


def draw(results: Sequence[Result], model: str, resolutions: Iterable[int], path: Path) -> Path | None:
    """Two panels for each resolution: the memory that tensors get, and that of the whole process (with PyTorch). None: no data."""
    places = [Comparison(results, model, resolution) for resolution in resolutions]
    places = [place for place in places if place.timed(methods.LMS)]
    if not places:
        return None
    figure, grid = plt.subplots(
        len(places), 2, figsize=(12.5, 4.6 * len(places)), layout="constrained", squeeze=False, sharey="row"
    )  # fmt: skip
    for (left, right), here in zip(grid, places, strict=True):
        _tensors(left, here)
        _process(right, here)
    for axis in grid.flat:
        plain(axis)
        axis.set_xlim(left=0)
    legend_below(figure, grid.flat, 4)
    return save(figure, path)


def _tensors(axis: plt.Axes, here: Comparison) -> None:
    for method in STYLE:
        points = [(here.share(memory_bytes(r)), r.ratio) for r in here.timed(method)]
        _points(axis, [(100 * s, q) for s, q in points if s and q], method)
    smallest, without = here.smallest_mib(methods.LMS), here.smallest_mib(methods.NONE)
    if smallest and without:
        axis.axvline(100 * smallest / without, color=BLUE, linestyle=":", linewidth=1, label="smallest limit with LMS")
    for share, most in STEP_RATIOS.items():
        axis.plot(
            100 * share,
            most,
            "_",
            color=VERMILION,
            markersize=18,
            markeredgewidth=2,
            label="promise: at most",
            zorder=3,
        )
    axis.set(
        title=f"{here.model} at {here.resolution}$^3$: TensorFlow", ylabel="step time / step time without LMS",
        xlabel="hard limit, or peak if there is none (% of the smallest limit without LMS)",
    )  # fmt: skip


def _process(axis: plt.Axes, here: Comparison) -> None:
    for method in STYLE:
        points = [(r.resident_bytes / GIB, r.ratio) for r in here.timed(method) if r.resident_bytes and r.ratio]
        _points(axis, points, method)
    axis.set(title="The whole process, PyTorch included", xlabel="resident memory above the imported framework (GiB)")


def _points(axis: plt.Axes, points: Sequence[tuple[float, float]], method: str) -> None:
    draw_ratios(axis, points, method, method, linestyle="-" if method in JOINED else "")
