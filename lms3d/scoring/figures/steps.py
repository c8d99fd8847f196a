"""Figures of a training step: memory over its operations and over its seconds, and its time under each memory limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lms3d.scoring.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, plain, plt, save
from lms3d.units import format_seconds

LANE_COLOURS = {"compute": BLUE, "recompute": GREEN, "swap out": ORANGE, "swap in": PURPLE, "waiting": VERMILION}
GIB = 2**30


def memory_timeline(
    planned_bytes: Sequence[int],
    unedited_bytes: Sequence[int],
    path: Path,
    *,
    limit_bytes: int,
    measured_peak_bytes: int | None,
    title: str,
    planned_label: str = "this run (predicted)",
) -> Path:
    """Draws the live bytes over the operations of one step, with LMS and without, and the memory limit as a line.

    The two steps have different numbers of operations, so the axis is the share of operations that are done.
    """
    figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
    for values, colour, label in (
        (unedited_bytes, GREY, "without LMS (predicted)"),
        (planned_bytes, BLUE, planned_label),
    ):
        if len(values):
            axis.fill_between(
                np.linspace(0, 100, len(values)), np.asarray(values) / GIB, color=colour, alpha=0.25, linewidth=0
            )
            axis.plot(np.linspace(0, 100, len(values)), np.asarray(values) / GIB, color=colour, label=label)
    largest = max([measured_peak_bytes or 0, *planned_bytes, *unedited_bytes])
    shown = min(limit_bytes, 1.3 * largest or limit_bytes)  # a limit far above everything would flatten the curves
    axis.axhline(limit_bytes / GIB, color=VERMILION, linestyle="--", label=f"memory limit, {limit_bytes / GIB:.2f} GiB")
    if measured_peak_bytes:
        label = f"measured peak, {measured_peak_bytes / GIB:.2f} GiB"
        axis.axhline(measured_peak_bytes / GIB, color=GREEN, linestyle=":", label=label)
    axis.set(title=title, xlabel="operations of the step that are done (%)", ylabel="memory in use (GiB)")
    axis.set(xlim=(0, 100), ylim=(0, 1.08 * max(shown, largest) / GIB))
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    plain(axis)
    return save(figure, path)


def step_timeline(
    path: Path,
    *,
    memory: tuple[Sequence[float], Sequence[int]],
    unedited_memory: tuple[Sequence[float], Sequence[int]],
    lanes: Mapping[str, Sequence[tuple[float, float]]],
    limit_bytes: int,
    title: str,
) -> Path:
    """Draws one step over its seconds: the memory above, and below it a lane for the device and for each link.

    memory, unedited_memory: seconds and bytes, with LMS and without. lanes: name -> spans (start, end) in seconds, from the top.
    """
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(9, 5.2), sharex=True, layout="constrained", height_ratios=(2.2, 0.25 + 0.25 * len(lanes))
    )
    for (seconds, sizes), colour, label in (
        (unedited_memory, GREY, "without LMS"), (memory, BLUE, "with this plan"),
    ):  # fmt: skip
        above.step(seconds, np.asarray(sizes) / GIB, where="post", color=colour, linewidth=1, label=label)
        above.fill_between(seconds, np.asarray(sizes) / GIB, step="post", color=colour, alpha=0.2, linewidth=0)
    largest = max([*memory[1], *unedited_memory[1]])
    label = f"memory limit, {limit_bytes / GIB:.2f} GiB"
    above.axhline(limit_bytes / GIB, color=VERMILION, linestyle="--", label=label)
    above.set(ylabel="memory in use (GiB)", ylim=(0, 1.08 * max(largest, min(limit_bytes, 1.3 * largest)) / GIB))
    above.set_title(f"{title} (predicted)")
    above.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for row, (name, pieces) in enumerate(lanes.items()):
        spans = [(start, end - start) for start, end in pieces]
        below.broken_barh(spans, (row - 0.38, 0.76), color=LANE_COLOURS.get(name, GREY), linewidth=0)
        busy = sum(length for _, length in spans)
        below.text(1.01, row, format_seconds(busy), transform=below.get_yaxis_transform(), va="center", color=GREY)
    below.set_yticks(range(len(lanes)), list(lanes))
    below.set(xlabel="time since the start of the step (s)", ylim=(len(lanes) - 0.5, -0.5))
    below.tick_params(axis="y", length=0)
    for axis in (above, below):
        plain(axis)
    above.set_xlim(0, max(*memory[0], *unedited_memory[0], *(end for pieces in lanes.values() for _, end in pieces)))
    return save(figure, path)


def pareto(
    path: Path,
    *,
    curves: Mapping[str, Sequence[tuple[int, float]]],
    points: Mapping[str, tuple[int, float]],
    floor_bytes: int,
    fit_bytes: int,
    unedited_seconds: float,
    title: str,
    slab_floor_bytes: int | None = None,
) -> Path:
    """Draws the predicted seconds of a step against the memory limit.

    curves: method -> (limit in bytes, seconds). points: methods that take no limit, each at the smallest limit that it fits into.
    floor_bytes, fit_bytes: the smallest limits with LMS and without. slab_floor_bytes: the smallest limit of the step in slabs, if
    it has slabs. A point far slower than all curves stands at the upper edge.
    """
    figure, axis = plt.subplots(figsize=(8.5, 5), layout="constrained")
    slowest = max([unedited_seconds, *(seconds for curve in curves.values() for _, seconds in curve)])
    top = slowest + 0.35 * max(slowest - unedited_seconds, 0.1 * unedited_seconds)
    bottom = unedited_seconds - 0.2 * (top - unedited_seconds)
    for (name, curve), (colour, marker) in zip(
        curves.items(), ((BLUE, "o"), (ORANGE, "s"), (GREEN, "D")), strict=False
    ):
        limits = [limit / GIB for limit, _ in curve]
        axis.plot(limits, [s for _, s in curve], color=colour, marker=marker, markersize=5, label=name)
    for (name, (limit, seconds)), (colour, marker) in zip(
        points.items(), ((VERMILION, "X"), (GREEN, "P"), (GREY, "*")), strict=False
    ):
        outside = seconds > top
        label = f"{name} ({seconds:.2g} s, far above)" if outside else name
        height = top if outside else seconds
        axis.plot(
            limit / GIB, height, "^" if outside else marker, color=colour, markersize=9, label=label, clip_on=False
        )
    axis.axhline(unedited_seconds, color=GREY, linewidth=1, linestyle=":", label="step time without LMS")
    lines = [(floor_bytes, "floor with LMS", "left"), (fit_bytes, "fits without LMS", "right")]
    if slab_floor_bytes is not None:
        lines[0] = (floor_bytes, "slabs begin:\nfloor of the whole step", "left")
        lines.append((slab_floor_bytes, "floor\nin slabs", "right"))
    for limit, name, side in lines:
        axis.axvline(limit / GIB, color=GREY, linewidth=1, linestyle="--")
        shift = 4 if side == "left" else -4
        axis.annotate(
            f"{name}\n{limit / GIB:.2f} GiB", (limit / GIB, 0), (shift, 4), ha=side, va="bottom", color=GREY, fontsize=9,
            xycoords=axis.get_xaxis_transform(), textcoords="offset points",
        )  # fmt: skip
    axis.set(ylim=(bottom, top), xlabel="memory limit (GiB)", ylabel="predicted step time (s)", title=title)
    ratio = axis.secondary_yaxis("right", functions=(lambda s: s / unedited_seconds, lambda r: r * unedited_seconds))
    ratio.set_ylabel("relative to no LMS")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    plain(axis)
    return save(figure, path)
