"""Training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from lms3d.scoring.figures.style import BLACK, BLUE, GREY, VERMILION, plain, plt, region_colour, region_name, save

Rows = Sequence[Mapping[str, float]]
"""The rows of history.csv."""


def training_curves(rows: Rows, path: Path) -> Path:
    """Draws the loss, the Dice of each region or the AUROC, and the learning rate over the epochs: training dashed, validation
    solid."""
    regions = [name.removeprefix("val_dice_") for name in (rows[0] if rows else ()) if name.startswith("val_dice_")]
    mean = bool(rows) and "val_dice" in rows[0]
    areas = bool(rows) and "val_auroc" in rows[0]
    panels = 3 if regions or mean or areas else 2
    figure, axes = plt.subplots(1, panels, figsize=(12.5 if panels == 3 else 8.5, 3.6), layout="constrained")
    _curve(axes[0], rows, "loss", GREY, "training", dashed=True)
    _curve(axes[0], rows, "val_loss", GREY, "validation")
    axes[0].set(title="Loss", xlabel="epoch", ylabel="loss (no unit)")
    axes[0].legend(frameon=False)
    for number, region in enumerate(regions):
        colour = region_colour(region, number)
        _curve(axes[1], rows, f"dice_{region}", colour, dashed=True)
        _curve(axes[1], rows, f"val_dice_{region}", colour, region_name(region))
    if mean:
        _curve(axes[1], rows, "val_dice", BLACK, "mean")
    if regions or mean:
        axes[1].set(title="Dice (solid: validation, dashed: training)", xlabel="epoch", ylabel="Dice", ylim=(0, 1))
        axes[1].legend(frameon=False, loc="best")
    if areas:
        _curve(axes[1], rows, "auroc", BLUE, dashed=True)
        _curve(axes[1], rows, "val_auroc", BLUE)
        title = "Mean AUROC (solid: validation, dashed: training)"
        axes[1].set(title=title, xlabel="epoch", ylabel="AUROC", ylim=(0.4, 1))
    _curve(axes[-1], rows, "learning_rate", VERMILION)
    axes[-1].set(title="Learning rate", xlabel="epoch", ylabel="step of Adam", yscale="log")
    for axis in axes:
        plain(axis)
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # even if there is one epoch
    return save(figure, path)


def _curve(axis: Axes, rows: Rows, name: str, colour: str, label: str | None = None, *, dashed: bool = False) -> None:
    style = {"linestyle": "--", "alpha": 0.7} if dashed else {"linestyle": "-"}
    epochs, values = [row["epoch"] for row in rows], [row.get(name, np.nan) for row in rows]
    axis.plot(epochs, values, color=colour, marker="o" if len(rows) < 30 else "", markersize=4, label=label, **style)
