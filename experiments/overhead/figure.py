"""Memory against step time, all methods in one picture: results -> PNG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.overhead import parts
from experiments.overhead.parts import Result
from experiments.overhead.results import Comparison, memory_bytes
from lms3d.scoring.figures.style import BLUE, GREEN, GREY, ORANGE, VERMILION, plain, plt, save

GIB = 1 << 30
PINK, SKY, YELLOW = "#CC79A7", "#56B4E9", "#B8A900"
STYLE = {
    parts.NONE: (GREY, "s"),
    parts.KERAS: (GREY, "D"),
    parts.LMS: (BLUE, "o"),
    parts.COPIED: (BLUE, "d"),
    parts.TFLMS: (ORANGE, "^"),
    parts.SWAP_ALL: (GREEN, "v"),
    parts.RECOMPUTE_CHEAP: (PINK, "<"),
    parts.RECOMPUTE_ALL: (PINK, ">"),
    parts.KERAS_REMAT: (SKY, "P"),
    parts.RECOMPUTE_GRAD: (SKY, "X"),
    parts.TORCH: (VERMILION, "s"),
    parts.TORCH_CHECKPOINT: (VERMILION, "P"),
    parts.TORCH_SAVE_ON_CPU: (YELLOW, "v"),
    **{name: (VERMILION, "*") for name, way in parts.TORCH_METHODS.items() if way.mode},
    **{name: (YELLOW, "s") for name in parts.TORCH_METHODS if name.startswith(f"{parts.TORCH},")},
    parts.XLA: (GREY, "*"),
}
MOST = 3.0  # a slower step is drawn here, with its ratio beside it: the others would lie in one line


def draw(results: Sequence[Result], model: str, resolutions: Iterable[int], path: Path) -> Path | None:
    """Per resolution two panels: memory that the tensors get, and memory of the whole process (with PyTorch). None: no data."""
    places = [Comparison(results, model, resolution) for resolution in resolutions]
    places = [place for place in places if place.timed(parts.LMS)]
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
    handles = {
        label: handle for axis in grid.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    return save(figure, path)


def _tensors(axis: plt.Axes, here: Comparison) -> None:
    for method, (colour, marker) in STYLE.items():
        points = [(here.share(memory_bytes(r)), r.ratio) for r in here.timed(method)]
        _points(axis, [(100 * s, q) for s, q in points if s and q], method, colour, marker)
    smallest, without = here.smallest_mib(parts.LMS), here.smallest_mib(parts.NONE)
    if smallest and without:
        axis.axvline(100 * smallest / without, color=BLUE, linestyle=":", linewidth=1, label="smallest limit with LMS")
    for share, most in ((50, 1.10), (35, 1.25)):
        axis.plot(
            share, most, "_", color=VERMILION, markersize=18, markeredgewidth=2, label="promise: at most", zorder=3
        )
    axis.set(
        title=f"{here.model} at {here.resolution}$^3$: TensorFlow", ylabel="step time / step time without LMS",
        xlabel="hard limit, or peak where there is none (% of the smallest limit without LMS)",
    )  # fmt: skip


def _process(axis: plt.Axes, here: Comparison) -> None:
    for method, (colour, marker) in STYLE.items():
        points = [(r.resident_bytes / GIB, r.ratio) for r in here.timed(method) if r.resident_bytes and r.ratio]
        _points(axis, points, method, colour, marker)
    axis.set(title="The whole process, PyTorch included", xlabel="resident memory above the imported framework (GiB)")


def _points(axis: plt.Axes, points: list[tuple[float, float]], method: str, colour: str, marker: str) -> None:
    line = "-" if method in (parts.LMS, parts.COPIED, parts.TFLMS) else ""
    if not points:
        return
    memory, ratios = zip(*sorted(points), strict=True)
    shown = [min(ratio, MOST) for ratio in ratios]
    axis.plot(memory, shown, color=colour, marker=marker, linestyle=line, label=method)
    say_slower(axis, points, colour)


def say_slower(axis: plt.Axes, points: Iterable[tuple[float, float]], colour: str) -> None:
    """The ratios above MOST, beside where they are drawn."""
    for x, ratio in points:
        if ratio > MOST:
            text = f"{ratio:.1f} x \N{UPWARDS ARROW}"
            axis.annotate(text, (x, MOST), (7, 0), textcoords="offset points", va="center", color=colour)
