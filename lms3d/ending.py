"""What a training run leaves for its reader: figures and one summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lms3d import console, figures
from lms3d.units import format_seconds, format_size

if TYPE_CHECKING:
    from lms3d.report import Report
    from lms3d.trainer import History


def draw(
    folder: Path, *, title: str, report: Report, history: History, case_id: str, flair: np.ndarray, truth: np.ndarray,
    segment: Callable[[], np.ndarray], regions: Mapping[str, tuple[int, ...]],
) -> None:  # fmt: skip
    """training.png, memory.png and slice.png in `folder`.

    flair (X, Y, Z) image, truth (X, Y, Z) labels of a validation case, which `segment` segments with the best weights.
    """
    if history.rows:
        figures.training_curves(history.rows, folder / "training.png")
    figures.memory_timeline(
        report.timeline_bytes if report.rewritten else (), report.unedited_timeline_bytes, folder / "memory.png",
        limit_bytes=report.limit_bytes, measured_peak_bytes=report.measured_peak_bytes,
        title=f"Memory over one training step of {title}",
    )  # fmt: skip
    labels = segment()
    figures.slice_with_outlines(
        flair,
        {region: np.isin(truth, values) for region, values in regions.items()},
        {region: np.isin(labels, values) for region, values in regions.items()},
        folder / "slice.png", title=f"{case_id} (validation)",
    )  # fmt: skip


def summarise(run_dir: Path, report: Report, history: History, seconds: float, *, guarded: bool) -> None:
    """One table: where things are, memory with and without LMS, seconds per step, Dice."""
    rows = {
        "run": f"{run_dir} (best.keras, history.csv, lms_report.md, ...)",
        "figures": str(run_dir / "figures"),
        "peak memory": _peaks(report),
        "step": format_seconds(report.measured_step_seconds) if report.measured_step_seconds else "none was run",
    }
    if history.rows:
        best = min(history.rows, key=lambda row: row["val_loss"])
        names = [name for name in figures.REGION_COLOURS if f"val_dice_{name}" in best]
        dice = "  ".join(f"{name} {best[f'val_dice_{name}']:.3f}" for name in names)
        rows["best epoch"] = f"{best['epoch']:.0f} of {len(history.rows)}, validation Dice {dice}"
    rows["next"] = f"{Path(sys.executable).name} -m lms3d.predict {run_dir}"
    why = ": no better validation loss" if history.stopped_early else ", as long as a demonstration should take"
    note = why if history.stopped_early or guarded else ""
    console.summary(f"Training ended after {format_seconds(seconds)}{note}", rows)


def _peaks(report: Report) -> str:
    peak = report.measured_peak_bytes
    with_lms = f"{format_size(peak)} measured" if peak else f"{format_size(report.predicted_peak_bytes)} predicted"
    limit = f"limit {format_size(report.limit_bytes)}"
    if not report.rewritten:
        return f"{with_lms}, {limit}; LMS changed nothing"
    return f"{with_lms}, {limit}; without LMS {format_size(report.unedited_peak_bytes)} (predicted)"
