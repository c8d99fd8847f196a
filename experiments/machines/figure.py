"""Published beside predicted, and our plans beside TFLMS's: rows -> PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.experiments.machines.predictions import PredictedFigure
from lms3d.scoring.figures.style import BLUE, GREY, ORANGE, VERMILION, plain, plt, save


def draw(found: Sequence[PredictedFigure], cases: Sequence[dict[str, Any]], path: Path) -> Path:
    """Left: epochs, with the span from all transfers hidden to none. Right: the step relative to none without LMS."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 6), layout="constrained")
    _epochs(left, [row for row in found if row.quantity == "epoch"])
    _ratios(right, [one for one in cases if one["fits"]])
    return save(figure, path)


def _epochs(axis: plt.Axes, rows: Sequence[PredictedFigure]) -> None:
    places = np.arange(len(rows))
    axis.barh(places - 0.2, [row.published for row in rows], 0.38, color=GREY, label="published")
    for calibrated, colour, label in ((True, ORANGE, "model, calibrated"), (False, BLUE, "model, predicted")):
        these = [(place, row) for place, row in zip(places, rows, strict=True) if row.calibrated == calibrated]
        axis.barh([p + 0.2 for p, _ in these], [row.predicted for _, row in these], 0.38, color=colour, label=label)
    for place, row in zip(places, rows, strict=True):
        if row.least is not None and row.most is not None:
            axis.plot([row.least, row.most], [place + 0.2] * 2, color="black", linewidth=1, marker="|")
    axis.set_yticks(places, [row.title for row in rows])
    axis.invert_yaxis()
    axis.set(xlabel="seconds per epoch of 228 subjects", title="The case study (lines: all transfers hidden to none)")
    axis.legend(frameon=False)
    plain(axis)


def _ratios(axis: plt.Axes, cases: Sequence[dict[str, Any]]) -> None:
    kinds = list(dict.fromkeys(map(_kind, cases)))
    places = np.arange(len(kinds))
    for shift, (method, colour) in zip((-0.2, 0.2), (("lms3d", BLUE), ("TFLMS auto-tune", VERMILION)), strict=True):
        these = [(kinds.index(_kind(one)), one["ratio"]) for one in cases
                 if one["method"] == method]  # fmt: skip
        axis.barh(
            [place + shift for place, _ in these], [ratio for _, ratio in these], 0.38, color=colour, label=method
        )
    axis.axvline(1, color=GREY, linestyle=":")
    axis.set_yticks(places, [f"{network}, {side}³, {machine}, {share:.0%}" for network, side, machine, share in kinds])
    axis.invert_yaxis()
    axis.set(xlabel="step / step without LMS (model)", title="Under a limit, a share of what it needs")
    axis.legend(loc="upper left", bbox_to_anchor=(0.0, -0.08), ncols=2, frameon=False)
    plain(axis)


def _kind(case: dict[str, Any]) -> tuple[str, int, str, float]:
    return case["network"], case["side"], case["machine"], case["share"]
