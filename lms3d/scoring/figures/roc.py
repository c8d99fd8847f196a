"""The ROC curves of all pathologies, and their areas beside the published ones. Arrays in, PNG out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from lms3d.scoring.auroc import ClassScore, Scores
from lms3d.scoring.figures.style import BLUE, GREEN, GREY, ORANGE, plain, plt, save
from lms3d.scoring.tables import PUBLISHED

COLUMNS = 5
Curve = tuple[np.ndarray, np.ndarray]


def roc_curves(scores: Scores, curves: Mapping[str, Curve], path: Path, *, title: str) -> Path:
    """Draws a panel for each class, with all others pale behind it, since 14 curves in one panel cannot be told apart.

    curves: class -> false and true positive rates, (K,) each. The panel of a class without a curve says so.
    """
    rows = -(-len(scores.classes) // COLUMNS)
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(2.3 * COLUMNS, 2.45 * rows), sharex=True, sharey=True, layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for axis, score in zip(axes.flat, scores.classes, strict=False):
        _panel(axis, score, curves)
    for axis in axes.flat[len(scores.classes) :]:
        axis.set_visible(False)
    for column in range(COLUMNS):  # the last row may be short: label the axis below the lowest panel of each column
        shown = [axis for axis in axes[:, column] if axis.get_visible()]
        if shown:
            shown[-1].set_xlabel("false positive rate")
            shown[-1].tick_params(labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel("true positive rate")
    ends = "" if np.isnan(scores.low) else f" ({scores.low:.3f}-{scores.high:.3f})"
    figure.suptitle(f"{title}: mean AUROC {scores.mean:.3f}{ends}")
    figure.supxlabel("blue: the pathology named above; grey: all others; dotted: chance", fontsize=8, color=GREY)
    return save(figure, path)


def _panel(axis: Axes, score: ClassScore, curves: Mapping[str, Curve]) -> None:
    for name, (false_rate, true_rate) in curves.items():
        if name != score.name:
            axis.plot(false_rate, true_rate, color=GREY, alpha=0.25, linewidth=0.7)
    axis.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    if score.name in curves:
        axis.plot(*curves[score.name], color=BLUE, linewidth=2)
        ends = "no interval" if np.isnan(score.low) else f"{score.low:.3f}-{score.high:.3f}"
        text = f"{score.auroc:.3f}\n{ends}\n{score.positives} positive"
    else:
        text = f"no area: {score.positives} of\n{score.positives + score.negatives} positive"
    axis.text(0.97, 0.05, text, ha="right", va="bottom", fontsize=8, transform=axis.transAxes)
    axis.set_title(score.name.replace("_", " "), fontsize=9)
    axis.set(xlim=(0, 1), ylim=(0, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), aspect="equal")
    plain(axis)


def areas(scores: Scores, path: Path, *, title: str) -> Path:
    """Draws a row for each class and for the mean: the AUROC with its 95 % interval, and the published values."""
    names = [score.name for score in scores.classes] + ["mean"]
    values = np.array(
        [[score.auroc, score.low, score.high] for score in scores.classes] + [[scores.mean, scores.low, scores.high]]
    )
    figure, axis = plt.subplots(figsize=(7.5, 0.9 + 0.31 * len(names)), layout="constrained")
    rows = np.arange(len(names))
    axis.hlines(rows, values[:, 1], values[:, 2], color=BLUE, linewidth=2, alpha=0.5)
    axis.plot(values[:, 0], rows, "o", color=BLUE, label="this run (95 % interval)")
    for (source, published), (colour, marker) in zip(PUBLISHED.items(), ((ORANGE, "D"), (GREEN, "s")), strict=True):
        places = [published.get(name, np.nan) for name in names]
        axis.plot(places, rows, marker, color=colour, markersize=5, mfc="none", label=f"{source}, ChestX-ray14")
    axis.axvline(0.5, color=GREY, linestyle=":", linewidth=1)
    axis.axhline(len(names) - 1.5, color=GREY, linewidth=0.6)
    axis.set_yticks(rows, [name.replace("_", " ") for name in names])
    axis.set(xlabel="AUROC (0.5: chance)", title=title, ylim=(len(names) - 0.5, -0.5))
    axis.set_xlim(min(0.48, float(np.nanmin(values, initial=0.5)) - 0.02), 1.005)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    plain(axis)
    return save(figure, path)
