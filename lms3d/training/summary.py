"""Figures and the summary at the end of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d import console
from lms3d.units import format_seconds, format_size

if TYPE_CHECKING:
    from lms3d.keras_step.report import Report
    from lms3d.training.trainer import History


LAST_FIGURE = "memory.png"


def drawn(run_dir: Path) -> bool:
    """Whether a run has all its figures: a process may be killed after its last epoch and before the last figure."""
    return (run_dir / "figures" / LAST_FIGURE).exists()


def draw(folder: Path, *, title: str, report: Report, history: History) -> None:
    """Draws training.png and memory.png, which every run has, into `folder`."""
    from lms3d.scoring.figures import curves, steps  # matplotlib takes half a second, which `--help` need not wait for

    if history.rows:
        curves.training_curves(history.rows, folder / "training.png")
    steps.memory_timeline(
        report.timeline_bytes if report.changed else (), report.unedited_timeline_bytes, folder / LAST_FIGURE,
        limit_bytes=report.limit_bytes, measured_peak_bytes=report.measured_peak_bytes,
        title=f"Memory over one training step of {title}",
    )  # fmt: skip


def summarise(run_dir: Path, report: Report, history: History, results: Mapping[str, str], seconds: float) -> None:
    """Prints one table: where files lie, memory with and without LMS, seconds per step, and the task's own `results`."""
    rows = {
        "run": f"{run_dir} (best.keras, history.csv, lms_report.md, ...)",
        "figures": str(run_dir / "figures"),
        "peak memory": _peaks(report),
        "step": format_seconds(report.measured_step_seconds) if report.measured_step_seconds else "none was run",
        **results,
    }
    why = ": no better validation loss" if history.stopped_early else ", as long as a demonstration should take"
    note = why if history.stopped_early or history.out_of_time else ""
    console.summary(f"Training ended after {format_seconds(seconds)}{note}", rows)


def _peaks(report: Report) -> str:
    peak = report.measured_peak_bytes
    with_lms = f"{format_size(peak)} measured" if peak else f"{format_size(report.predicted_peak_bytes)} predicted"
    limit = f"limit {format_size(report.limit_bytes)}"
    if not report.changed:
        return f"{with_lms}, {limit}; LMS changed nothing"
    slabs = f"; {report.levels_text()}" if report.slabs else ""
    return f"{with_lms}, {limit}; without LMS {format_size(report.unedited_peak_bytes)} (predicted){slabs}"
