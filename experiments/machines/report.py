"""Rows -> Markdown and CSV. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lms3d.experiments.harness import published
from lms3d.experiments.harness.table import markdown
from lms3d.experiments.machines.calibration import Tried
from lms3d.experiments.machines.predictions import PredictedFigure, within
from lms3d.machines.model import MachineModel
from lms3d.units import format_size

NEAR = 0.10
COLUMNS = ("quantity", "title", "unit", "published", "predicted", "error", "calibrated", "least", "most")


def sections(
    part: dict[str, Any],
    rows: Sequence[PredictedFigure],
    cases: Sequence[dict[str, Any]],
    machines: Mapping[str, MachineModel],
    notes: str,
) -> list[str]:
    """The sections of the report, as Markdown."""
    low, above, high = (format_size(size) for size in part["needed_bytes"])
    chosen = Tried(**part["tflms"])
    return [
        "# Models of machines",
        "## What the case study measured",
        figures_table(rows),
        notes,
        f"The rates in the files need a factor of {part['factor']:.3f}. Without LMS the case study's step needs {low} at "
        f"{published.LOW}³, {above} at {published.NEXT}³ and {high} at {published.HIGH}³, of {format_size(part['limit_bytes'])}: "
        f"the article names {published.LOW}³ as the largest that fits.",
        f"The third calibration: of all sync modes and thresholds the nearest epoch, {chosen.epoch_seconds:.0f} s, is that of "
        f"sync_mode {chosen.sync_mode} with swapout_threshold {chosen.threshold}.",
        *(["## Our plans", ours_table(cases, machines)] if cases else []),
        "## Errors",
        "\n".join(f"- {line}" for line in accuracy(rows)),
    ]


def records(found: Sequence[PredictedFigure]) -> list[dict[str, object]]:
    """The rows of the CSV file."""
    return [{**asdict(row), "error": row.error} for row in found]


def figures_table(found: Sequence[PredictedFigure]) -> str:
    """Published, predicted, error, and the two ends between which the transfers of a plan can put a step."""
    head = ("figure", "", "published", "predicted", "error", "all hidden to none")
    return markdown(head, [
        (
            row.quantity, row.title, _value(row.published, row.unit), _value(row.predicted, row.unit),
            "calibrated" if row.calibrated else f"{row.error:+.1%}" + (" **missed**" if abs(row.error) > NEAR else ""),
            "" if row.least is None or row.most is None else f"{row.least:.0f} to {row.most:.0f} s",
        )
        for row in found
    ])  # fmt: skip


def ours_table(found: Sequence[dict[str, Any]], machines: Mapping[str, MachineModel]) -> str:
    """Each case that was worked out."""
    head = ("network", "cube", "machine", "limit", "of what it needs", "plan", "step", "x no LMS", "busy",
            "GB out / in", "GB/s out / in", "recomputed ops")  # fmt: skip
    return markdown(head, [_ours(one, machines) for one in found])


def _ours(one: dict[str, Any], machines: Mapping[str, MachineModel]) -> tuple[str, ...]:
    where = (one["network"], f"{one['side']}³", machines[one["machine"]].title, format_size(one["limit_bytes"]),
             f"{one['share']:.0%}", one["method"])  # fmt: skip
    if not one["fits"]:
        return (*where, "does not fit", "", "", "", "", "")
    moved = [one[f"{way}_bytes"] / 1e9 for way in ("out", "in")]
    return (
        *where, f"{one['step_seconds']:.2f} s", f"{one['ratio']:.2f}", f"{one['busy_share']:.0%}",
        " / ".join(f"{size:.1f}" for size in moved), " / ".join(f"{size / one['step_seconds']:.1f}" for size in moved),
        str(one["recomputed_ops"]),
    )  # fmt: skip


def accuracy(found: Sequence[PredictedFigure]) -> list[str]:
    """How many figures are predicted well, and the largest error of each kind."""
    good, of = within(found, NEAR)
    lines = [f"{good} of the {of} figures that were not calibrated are predicted within {NEAR:.0%}."]
    for kind in dict.fromkeys(row.quantity for row in found):
        these = [row for row in found if row.quantity == kind and not row.calibrated]
        if these:
            worst = max(these, key=lambda row: abs(row.error))
            lines.append(f"{kind}: the largest error is {worst.error:+.1%} ({worst.title}).")
    return lines


def _value(value: float, unit: str) -> str:
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}" if value >= 4 else f"{value:.2f} {unit}"
