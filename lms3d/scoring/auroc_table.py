"""AUROCs beside the published ones, as CSV for programs and as Markdown for people."""

from __future__ import annotations

import csv
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.files import replacing
from lms3d.scoring.auroc import ClassScore, Scores

SOURCES = ("CheXNet paper", "Dell")
"""arXiv:1711.05225, table 2, and the CheXNet scaling study's DenseNet-121; both on ChestX-ray14."""

AREAS = {
    "Atelectasis": (0.8094, 0.816),
    "Cardiomegaly": (0.9248, 0.876),
    "Effusion": (0.8638, 0.890),
    "Infiltration": (0.7345, 0.673),
    "Mass": (0.8676, 0.823),
    "Nodule": (0.7802, 0.716),
    "Pneumonia": (0.7680, 0.833),
    "Pneumothorax": (0.8887, 0.695),
    "Consolidation": (0.7901, 0.799),
    "Edema": (0.8878, 0.871),
    "Emphysema": (0.9371, 0.893),
    "Fibrosis": (0.8047, 0.785),
    "Pleural_Thickening": (0.8062, 0.751),
    "Hernia": (0.9164, 0.833),
}
"""Of each source, by class, in the classes' usual order."""

PUBLISHED = {
    source: {name: areas[i] for name, areas in AREAS.items()} | {"mean": sum(a[i] for a in AREAS.values()) / len(AREAS)}
    for i, source in enumerate(SOURCES)
}
"""By source: the area of each class, and their mean."""


def write_csv(scores: Scores, path: Path) -> None:
    """One line per class, then the mean, with the published areas beside them; figures with six decimals."""
    names = [field.name for field in fields(ClassScore)]
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, *PUBLISHED])
        for one in [*(asdict(score) for score in scores.classes), _mean_row(scores)]:
            figures = [one[name] for name in names] + [_published(source, one["name"]) for source in PUBLISHED]
            writer.writerow([_csv_text(value) for value in figures])


def to_markdown(scores: Scores, remark: str = "") -> str:
    """The table beside the published areas, and below it what the intervals are and which classes are left out."""
    head = ["pathology", "positives", "AUROC (95 % interval)", *PUBLISHED]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for one in [*(asdict(score) for score in scores.classes), _mean_row(scores)]:
        area = "-" if np.isnan(one["auroc"]) else f"{one['auroc']:.3f} ({_range(one['low'], one['high'])})"
        published = [_published(source, one["name"]) for source in PUBLISHED]
        lines.append([
            one["name"].replace("_", " "), str(one["positives"]), area,
            *("" if np.isnan(value) else f"{value:.3f}" for value in published),
        ])  # fmt: skip
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n\n".join([table, *_notes(scores), *([remark] if remark else [])]) + "\n"


def _notes(scores: Scores) -> list[str]:
    drawn = f"{scores.patients} patients" if scores.patients is not None else "single images"
    notes = [f"{scores.images} images; intervals: percentiles of {scores.draws} bootstrap draws of {drawn}."]
    if scores.left_out:
        notes.append(f"Left out of the mean, because all images have the same answer: {', '.join(scores.left_out)}.")
    return notes


def _mean_row(scores: Scores) -> dict[str, Any]:
    mean = {"auroc": scores.mean, "low": scores.low, "high": scores.high}
    return {"name": "mean", "positives": "", "negatives": "", **mean}


def _published(source: str, name: str) -> float:
    return PUBLISHED[source].get(name, float("nan"))


def _range(low: float, high: float) -> str:
    return "unknown" if np.isnan(low) else f"{low:.3f}-{high:.3f}"


def _csv_text(value: Any) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.6f}"
    return str(value)
