"""Figures of one run: training curves, memory over a step, a slice with truth and prediction. Arrays in, PNG out."""

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

# Okabe and Ito's palette, told apart by all kinds of colour vision (https://jfly.uni-koeln.de/color/).
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#6b6b6b"
REGION_COLOURS = {"WT": BLUE, "TC": ORANGE, "ET": GREEN}
REGION_NAMES = {"WT": "whole tumour", "TC": "tumour core", "ET": "enhancing tumour"}
GIB = 2**30


def training_curves(rows: Sequence[Mapping[str, float]], path: Path) -> Path:
    """Loss, Dice per region and learning rate over the epochs of history.csv; training dashed, validation solid."""
    regions = [name for name in REGION_COLOURS if rows and f"val_dice_{name}" in rows[0]]
    figure, axes = plt.subplots(1, 3 if regions else 2, figsize=(12.5 if regions else 8.5, 3.6), layout="constrained")
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
) -> Path:
    """Live bytes over the operations of one step, with LMS and without, and the memory limit as a line.

    The two steps have different numbers of operations, so the axis is the share of each that is done.
    """
    figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
    for values, colour, label in (
        (unedited_bytes, GREY, "without LMS (predicted)"),
        (planned_bytes, BLUE, "this run (predicted)"),
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
