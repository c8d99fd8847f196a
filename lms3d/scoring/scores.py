"""Scores of predictions: one record per (predictions, case, space, region), and tables of them.

Records are plain values. `summarise` gives the numbers of a box plot, `average_over_models` the case study's mean over
the models of one resolution. Tables are written as CSV for programs and as Markdown for people.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.files import replacing
from lms3d.scoring import masks

SPACES = ("native", "cube")
"""The grid of the files, and the cube of the network."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """How well one region of one case was found."""

    predictions: str
    """Label of the predictions folder, or of the group of models."""
    case: str
    space: str
    """One of SPACES."""
    region: str
    dice: float
    sensitivity: float
    specificity: float
    hd95_mm: float | None = None
    """95th percentile of the surface distance; None where it was not asked for."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Dice of one region over all cases."""

    predictions: str
    space: str
    region: str
    cases: int
    mean: float
    std: float
    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    maximum: float
    mean_sensitivity: float
    mean_specificity: float
    mean_hd95_mm: float | None = None


def score(
    prediction: Mapping[str, np.ndarray],
    truth: Mapping[str, np.ndarray],
    *,
    predictions: str,
    case: str,
    space: str,
    spacing_mm: Sequence[float] | None = None,
) -> list[Record]:
    """One record per region; both arguments map a region to its boolean mask (X, Y, Z).

    spacing_mm: voxel size for HD95; None leaves it out, which is much faster.
    """
    return [
        Record(
            predictions=predictions,
            case=case,
            space=space,
            region=region,
            dice=masks.dice(prediction[region], mask),
            sensitivity=masks.sensitivity(prediction[region], mask),
            specificity=masks.specificity(prediction[region], mask),
            hd95_mm=None if spacing_mm is None else masks.hausdorff95(prediction[region], mask, spacing_mm),
        )
        for region, mask in truth.items()
    ]


def summarise(records: Iterable[Record]) -> list[Summary]:
    """One summary per (predictions, space, region), in the order in which they first occur."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.predictions, record.space, record.region].append(record)
    return [_summary(group) for group in groups.values()]


def _summary(group: list[Record]) -> Summary:
    dice = np.array([record.dice for record in group])
    low, lower, median, upper, high = (float(value) for value in np.percentile(dice, (0, 25, 50, 75, 100)))
    distances = [record.hd95_mm for record in group if record.hd95_mm is not None]
    return Summary(
        predictions=group[0].predictions,
        space=group[0].space,
        region=group[0].region,
        cases=len(group),
        mean=float(dice.mean()),
        std=float(dice.std()),
        minimum=low,
        lower_quartile=lower,
        median=median,
        upper_quartile=upper,
        maximum=high,
        mean_sensitivity=float(np.mean([record.sensitivity for record in group])),
        mean_specificity=float(np.mean([record.specificity for record in group])),
        mean_hd95_mm=float(np.mean(distances)) if distances else None,
    )


def average_over_models(records: Iterable[Record], group_of: Mapping[str, str]) -> list[Record]:
    """The mean over the models of a group, per case, space and region.

    group_of: label of predictions -> label of their group, which becomes the record's `predictions`.
    """
    groups: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[group_of[record.predictions], record.case, record.space, record.region].append(record)
    return [replace(_mean(members), predictions=key[0]) for key, members in groups.items()]


def _mean(records: list[Record]) -> Record:
    distances = [record.hd95_mm for record in records if record.hd95_mm is not None]
    return replace(
        records[0],
        dice=float(np.mean([record.dice for record in records])),
        sensitivity=float(np.mean([record.sensitivity for record in records])),
        specificity=float(np.mean([record.specificity for record in records])),
        hd95_mm=float(np.mean(distances)) if distances else None,
    )


def write_csv(rows: Sequence[Record] | Sequence[Summary], path: Path) -> None:
    """One line per row, columns named as the fields; figures with six decimals."""
    names = [field.name for field in fields(rows[0])]
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _csv_text(value) for name, value in asdict(row).items()})


def to_markdown(summaries: Sequence[Summary]) -> str:
    """A table of Dice per predictions, space and region."""
    with_hd95 = any(summary.mean_hd95_mm is not None for summary in summaries)
    head = ["predictions", "space", "region", "cases", "mean ± std", "median (quartiles)", "sensitivity", "specificity"]
    lines = [head + ["HD95 mm"] * with_hd95, ["---"] * (len(head) + with_hd95)]
    for row in summaries:
        cells = [row.predictions, row.space, row.region, str(row.cases), f"{row.mean:.3f} ± {row.std:.3f}"]
        cells.append(f"{row.median:.3f} ({row.lower_quartile:.3f}-{row.upper_quartile:.3f})")
        cells += [f"{row.mean_sensitivity:.3f}", f"{row.mean_specificity:.4f}"]
        lines.append(cells + [f"{row.mean_hd95_mm:.1f}" if row.mean_hd95_mm is not None else ""] * with_hd95)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _csv_text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6f}" if isinstance(value, float) else str(value)
