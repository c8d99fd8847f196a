"""Lanes over time -> PNG: the whole range, and its middle step enlarged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lms3d.experiments.profiling import intervals, measure
from lms3d.experiments.profiling.intervals import Interval
from lms3d.experiments.profiling.lanes import COMPUTE, DATA, IN, OUT, WAIT, Trace
from lms3d.experiments.profiling.perfetto import TITLES
from lms3d.scoring.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, plain, plt, save

COLOURS = {"steps": GREY, COMPUTE: BLUE, OUT: ORANGE, IN: GREEN, WAIT: VERMILION, DATA: PURPLE}
FINEST = 4000
"""Points across a panel: gaps that are narrower are closed."""


def draw(traces: Sequence[tuple[str, Trace]], path: Path) -> Path:
    """One row for each trace, by its title; on the right its middle step. The number beside a lane: its share of the panel."""
    size = (15, 0.6 + 2.3 * len(traces))
    figure, grid = plt.subplots(len(traces), 2, figsize=size, layout="constrained", squeeze=False)
    for row, (title, trace) in zip(grid, traces, strict=True):
        middle = trace.steps[len(trace.steps) // 2]
        _lanes(row[0], trace, measure.whole(trace))
        row[0].set_title(title, fontsize=10)
        _lanes(row[1], trace, middle.interval)
        row[1].set_title(f"step {middle.number}", fontsize=10)
    for axis in grid[-1]:
        axis.set_xlabel("seconds")
    return save(figure, path)


def _lanes(axis: plt.Axes, trace: Trace, window: Interval) -> None:
    begin, end = window
    for place, lane in enumerate(TITLES):
        shown = intervals.common(_times(trace, lane), [window])
        bars = [((b - begin) * 1e-12, (e - b) * 1e-12) for b, e in _closed(shown, (end - begin) // FINEST)]
        axis.broken_barh(bars, (place - 0.35, 0.7), color=COLOURS[lane], linewidth=0)
        share = intervals.total(shown) / (end - begin)
        axis.text(1.01, place, f"{share:.0%}", transform=axis.get_yaxis_transform(), va="center", fontsize=8)
    axis.set_xlim(0, (end - begin) * 1e-12)
    axis.set_yticks(range(len(TITLES)), list(TITLES.values()))
    axis.set_ylim(len(TITLES) - 0.5, -0.5)
    plain(axis)


def _times(trace: Trace, lane: str) -> list[Interval]:
    if lane == "steps":
        return intervals.union(step.interval for step in trace.steps)
    return measure.times(trace, lane)


def _closed(shown: Sequence[Interval], finest: int) -> list[Interval]:
    return intervals.union((begin, end + finest) for begin, end in shown)
