"""Efficiency over ranks: measured points, the model's curves and the ideal. Results -> PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lms3d.experiments.scalability import case_study, measured, shares, table
from lms3d.experiments.scalability.case_study import INDEPENDENT, JOB
from lms3d.experiments.scalability.communication import Link
from lms3d.experiments.scalability.measured import Measurement
from lms3d.experiments.scalability.model import STRONG, WEAK, predict
from lms3d.scoring.figures.style import BLUE, GREEN, GREY, ORANGE, VERMILION, plain, plt, save

MOST_RANKS = 1024
TITLES = {STRONG: "Strong scaling: the same data for all ranks", WEAK: "Weak scaling: the same work for each rank"}


def draw_model(path: Path) -> Path:
    """Table 7 and the model of its cluster up to 1024 ranks; the bands span the two calibrations."""
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained", sharey="row")
    every = np.arange(1, MOST_RANKS + 1)
    for axis, scaling in zip(axes, (STRONG, WEAK), strict=True):
        if scaling == STRONG:
            _curve(axis, every, scaling, shares.FIXED, ORANGE, "model, fixed shares (case study)")
            _table_7(axis)
        _curve(axis, every, scaling, shares.ONE_ORDER, BLUE, "model, one global order (lms3d), samples per second")
        axis.axhline(100, color=GREY, linestyle=":", label="ideal")
        axis.set_xscale("log", base=2)
        axis.set_xticks([2**k for k in range(0, 11, 2)], [str(2**k) for k in range(0, 11, 2)])
        axis.set(title=TITLES[scaling], xlabel="GPUs, 4 a node", ylim=(70, 101))
        plain(axis)
    axes[0].set_ylabel("efficiency (%)")
    axes[0].axvline(JOB.samples, color=GREY, linewidth=1, linestyle="--")
    axes[0].annotate("228: a subject\nfor each GPU", (1.55 * JOB.samples, 90), color=GREY, fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("isensee2017 at 192$^3$, 228 subjects, a V100 for each rank, 100 Gb/s between nodes")
    return save(figure, path)


def _table_7(axis: plt.Axes) -> None:
    """Table 7, with error bars for its rounding to whole seconds."""
    ranks = list(case_study.EFFICIENCY)
    shown = 100 * np.array([case_study.EFFICIENCY[n] for n in ranks])
    seconds = np.array([case_study.EPOCH_SECONDS[n] for n in ranks])
    rounding = np.abs([shown * seconds / (seconds + 0.5) - shown, shown * seconds / (seconds - 0.5) - shown])
    axis.errorbar(ranks, shown, rounding, fmt="o", color=VERMILION, capsize=3, label="measured: Table 7", zorder=4)


def _curve(axis: plt.Axes, ranks: np.ndarray, scaling: str, deal: str, colour: str, label: str) -> None:
    fitted, other = (
        [100 * predict(JOB, machine, int(n), scaling=scaling, distribution=deal).efficiency for n in ranks]
        for machine in (case_study.fitted(), INDEPENDENT)
    )
    axis.plot(ranks, fitted, color=colour, label=label, linewidth=1.3)
    axis.fill_between(ranks, fitted, other, color=colour, alpha=0.2, linewidth=0)


def draw_measured(found: Sequence[Measurement], link: Link | None, path: Path) -> Path | None:
    """Speed-up and efficiency of real runs on this machine. None: nothing was measured."""
    if not found:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    most = max(one.ranks for one in found)
    for scaling, colour, marker in ((STRONG, BLUE, "o"), (WEAK, GREEN, "s")):
        base, these = measured.baseline(found, scaling), [one for one in found if one.scaling == scaling]
        if base is None:
            continue
        ranks, label = [one.ranks for one in these], f"{scaling}, measured"
        speed_up = [measured.speed_up(one, base) for one in these]
        efficiency = [100 * measured.efficiency(one, base) for one in these]
        for axis, values in ((left, speed_up), (right, efficiency)):
            axis.plot(ranks, values, marker + "-", color=colour, label=label)
        by_model = [(one.ranks, table.predicted(one, base, link)) for one in these]
        known = [(n, 100 * share) for n, share in by_model if share is not None]
        if known:
            right.plot(
                *zip(*known, strict=True), "--", color=colour, alpha=0.6, label=f"{scaling}, model without contention"
            )
    left.plot([1, most], [1, most], ":", color=GREY, label="ideal")
    right.axhline(100, color=GREY, linestyle=":", label="ideal")
    left.set(title="Speed-up", xlabel="ranks", ylabel="samples per second / those of one rank", ylim=(0, None))
    right.set(title="Efficiency", xlabel="ranks", ylabel="efficiency (%)", ylim=(0, None))
    for axis in (left, right):
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False)
        plain(axis)
    return save(figure, path)
