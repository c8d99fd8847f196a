"""One slice of a volume with the outlines of true and predicted regions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D

from lms3d.scoring.figures.style import plt, region_colour, region_name, save


def slice_with_outlines(
    background: np.ndarray,
    truth: Mapping[str, np.ndarray],
    prediction: Mapping[str, np.ndarray],
    path: Path,
    *,
    title: str,
    shown: str = "FLAIR",
) -> Path:
    """Draws the axial slice of a volume with most foreground: the image alone, with the truth outlined, and with the prediction
    outlined.

    background: an image (X, Y, Z). shown: what it is. truth, prediction: region -> mask (X, Y, Z).
    """
    index = best_slice(truth)
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 4.1), layout="constrained", facecolor="white")
    image = background[:, :, index].T
    low, high = np.percentile(image, (1, 99.5))
    for axis, name, masks in zip(axes, (shown, "truth", "prediction"), ({}, truth, prediction), strict=True):
        axis.imshow(image, cmap="gray", vmin=low, vmax=high, origin="lower", interpolation="nearest")
        for number, (region, mask) in enumerate(masks.items()):
            if mask[:, :, index].any():
                axis.contour(mask[:, :, index].T, levels=[0.5], colors=[region_colour(region, number)], linewidths=1.6)
        axis.set(title=name, xticks=[], yticks=[])
    handles = [
        Line2D([], [], color=region_colour(region, number), label=region_name(region))
        for number, region in enumerate(truth)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6), frameon=False)
    figure.suptitle(f"{title}, axial slice {index + 1} of {background.shape[2]}")
    return save(figure, path)


def best_slice(masks: Mapping[str, np.ndarray]) -> int:
    """The index along Z of the slice with the largest area of the union of all masks; the middle if all are empty."""
    areas = np.sum(np.any(np.stack(list(masks.values())), axis=0), axis=(0, 1))
    return int(areas.argmax()) if areas.any() else len(areas) // 2
