"""Figures: training curves, memory over a step, limit against time, a slice with its prediction. Arrays in, PNG out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lms3d.files import replacing
from lms3d.units import format_seconds

# Okabe and Ito's palette, told apart by all kinds of colour vision (https://jfly.uni-koeln.de/color/).
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#6b6b6b"
REGION_COLOURS = {"WT": BLUE, "TC": ORANGE, "ET": GREEN}
REGION_NAMES = {"WT": "whole tumour", "TC": "tumour core", "ET": "enhancing tumour"}
LANE_COLOURS = {"compute": BLUE, "recompute": GREEN, "swap out": ORANGE, "swap in": "#CC79A7", "waiting": VERMILION}
GIB = 2**30


def training_curves(rows: Sequence[Mapping[str, float]], path: Path) -> Path:
    """Loss, Dice per region or AUROC, and learning rate over the epochs of history.csv; training dashed, validation solid."""
    regions = [name for name in REGION_COLOURS if rows and f"val_dice_{name}" in rows[0]]
    areas = bool(rows) and "val_auroc" in rows[0]
    panels = 3 if regions or areas else 2
    figure, axes = plt.subplots(1, panels, figsize=(12.5 if panels == 3 else 8.5, 3.6), layout="constrained")
    epochs = [row["epoch"] for row in rows]
    marker = "o" if len(rows) < 30 else ""
    _curve(axes[0], epochs, rows, "loss", GREY, marker, "training", dashed=True)
    _curve(axes[0], epochs, rows, "val_loss", GREY, marker, "validation")
    axes[0].set(title="Loss", xlabel="epoch", ylabel="loss (no unit)")
    axes[0].legend(frameon=False)
    for region in regions:
        _curve(axes[1], epochs, rows, f"dice_{region}", REGION_COLOURS[region], marker, None, dashed=True)
        _curve(axes[1], epochs, rows, f"val_dice_{region}", REGION_COLOURS[region], marker, REGION_NAMES[region])
    if regions:
        axes[1].set(title="Dice (solid: validation, dashed: training)", xlabel="epoch", ylabel="Dice", ylim=(0, 1))
        axes[1].legend(frameon=False, loc="best")
    if areas:
        _curve(axes[1], epochs, rows, "auroc", BLUE, marker, None, dashed=True)
        _curve(axes[1], epochs, rows, "val_auroc", BLUE, marker, None)
        axes[1].set(
            title="Mean AUROC (solid: validation, dashed: training)", xlabel="epoch", ylabel="AUROC", ylim=(0.4, 1)
        )
    _curve(axes[-1], epochs, rows, "learning_rate", VERMILION, marker, None)
    axes[-1].set(title="Learning rate", xlabel="epoch", ylabel="step of Adam", yscale="log")
    for axis in axes:
        _plain(axis)
        axis.xaxis.get_major_locator().set_params(integer=True)
    return _save(figure, path)


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
    """Live bytes over the operations of one step, with LMS and without, and the memory limit as a line.

    The two steps have different numbers of operations, so the axis is the share of each that is done.
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
    shown = min(limit_bytes, 1.3 * largest)  # a limit far above everything would flatten the curves
    axis.axhline(limit_bytes / GIB, color=VERMILION, linestyle="--", label=f"memory limit, {limit_bytes / GIB:.2f} GiB")
    if measured_peak_bytes:
        label = f"measured peak, {measured_peak_bytes / GIB:.2f} GiB"
        axis.axhline(measured_peak_bytes / GIB, color=GREEN, linestyle=":", label=label)
    axis.set(title=title, xlabel="operations of the step that are done (%)", ylabel="memory in use (GiB)")
    axis.set(xlim=(0, 100), ylim=(0, 1.08 * max(shown, largest) / GIB))
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    _plain(axis)
    return _save(figure, path)


def step_timeline(
    path: Path,
    *,
    memory: tuple[Sequence[float], Sequence[int]],
    unedited_memory: tuple[Sequence[float], Sequence[int]],
    lanes: Mapping[str, Sequence[tuple[float, float]]],
    limit_bytes: int,
    title: str,
) -> Path:
    """One step over its seconds: memory above; below it what the device and the links do meanwhile, a lane for each.

    memory, unedited_memory: seconds and bytes, with LMS and without. lanes: name -> (start, end) in seconds, from the top.
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
        _plain(axis)
    above.set_xlim(0, max(*memory[0], *unedited_memory[0], *(end for pieces in lanes.values() for _, end in pieces)))
    return _save(figure, path)


def pareto(
    path: Path,
    *,
    curves: Mapping[str, Sequence[tuple[int, float]]],
    points: Mapping[str, tuple[int, float]],
    floor_bytes: int,
    fit_bytes: int,
    unedited_seconds: float,
    title: str,
) -> Path:
    """Seconds of a step against the memory limit, all predicted.

    curves: method -> (limit in bytes, seconds); points: methods that know no limit, where they just fit; floor_bytes,
    fit_bytes: the smallest limits with LMS and without. What is far slower than all curves stands at the upper edge.
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
    for limit, name, side in ((floor_bytes, "floor with LMS", "left"), (fit_bytes, "fits without LMS", "right")):
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
    _plain(axis)
    return _save(figure, path)


def slice_with_outlines(
    background: np.ndarray,
    truth: Mapping[str, np.ndarray],
    prediction: Mapping[str, np.ndarray],
    path: Path,
    *,
    title: str,
) -> Path:
    """The axial slice with most tumour of one volume: image alone, truth outlined, prediction outlined.

    background: (X, Y, Z) image; truth, prediction: per region a mask (X, Y, Z).
    """
    index = best_slice(truth)
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 4.1), layout="constrained", facecolor="white")
    image = background[:, :, index].T
    low, high = np.percentile(image, (1, 99.5))
    for axis, name, masks in zip(axes, ("FLAIR", "truth", "prediction"), ({}, truth, prediction), strict=True):
        axis.imshow(image, cmap="gray", vmin=low, vmax=high, origin="lower", interpolation="nearest")
        for region, mask in masks.items():
            if mask[:, :, index].any():
                axis.contour(mask[:, :, index].T, levels=[0.5], colors=[REGION_COLOURS[region]], linewidths=1.6)
        axis.set(title=name, xticks=[], yticks=[])
    handles = [Line2D([], [], color=REGION_COLOURS[region], label=REGION_NAMES[region]) for region in truth]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(f"{title}, axial slice {index + 1} of {background.shape[2]}")
    return _save(figure, path)


def best_slice(masks: Mapping[str, np.ndarray]) -> int:
    """Index along Z with the largest area of any mask, of the union; the middle if all are empty."""
    areas = np.sum(np.any(np.stack(list(masks.values())), axis=0), axis=(0, 1))
    return int(areas.argmax()) if areas.any() else len(areas) // 2


def _curve(
    axis: Axes,
    epochs: Sequence[float],
    rows: Sequence[Mapping[str, float]],
    name: str,
    colour: str,
    marker: str,
    label: str | None,
    *,
    dashed: bool = False,
) -> None:
    style = {"linestyle": "--", "alpha": 0.7} if dashed else {"linestyle": "-"}
    values = [row.get(name, np.nan) for row in rows]
    axis.plot(epochs, values, color=colour, marker=marker, markersize=4, label=label, **style)


def _plain(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)


def _save(figure: Figure, path: Path) -> Path:
    with replacing(path) as partial:
        figure.savefig(partial, dpi=150)
    plt.close(figure)
    return path
