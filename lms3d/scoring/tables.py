"""Tables as CSV for programs and as Markdown for people. The table of AUROCs has the published ones beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from lms3d.atomic_files import replacing
from lms3d.common import markdown
from lms3d.scoring.auroc import Scores

WIDTH = 118
"""The characters of a line on most terminals, almost."""

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
"""Class -> the area in each source, with the classes in their usual order."""

PUBLISHED = {
    source: {name: areas[i] for name, areas in AREAS.items()} | {"mean": sum(a[i] for a in AREAS.values()) / len(AREAS)}
    for i, source in enumerate(SOURCES)
}
"""Source -> the area of each class, and their mean."""


def printable(text: str) -> str:
    """A name for tables, figures and pages. A file name may have bytes that are no UTF-8, which they cannot hold."""
    return text.encode(errors="backslashreplace").decode()


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Writes a table, atomically: a line for each row, figures with six decimals, and nothing for a NaN."""
    with replacing(path) as partial:
        table.to_csv(partial, index=False, float_format="%.6f", lineterminator="\r\n")


def side_by_side(
    names: Sequence[str], keys: Sequence[Sequence[str]], columns: Mapping[str, Sequence[str]], *, width: int = WIDTH
) -> list[str]:
    """These columns of texts as Markdown tables of at most `width` characters, unless a single column is wider.

    names, keys: the columns that name a row, by name and row by row; each table begins with them.
    """
    taken = sum(3 + max(map(len, cells)) for cells in zip(names, *keys, strict=True)) + 1
    parts: list[list[str]] = []
    used = taken
    for head, cells in columns.items():
        wide = 3 + max(map(len, (head, *cells)))
        if not parts or used + wide > width:
            parts.append([])
            used = taken
        parts[-1].append(head)
        used += wide
    made = (markdown.table([*names, *part], _rows(keys, [columns[head] for head in part])) for part in parts)
    return [f"{one}\n" for one in made]


def _rows(keys: Sequence[Sequence[str]], columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows that hold anything besides their key."""
    return [[*key, *cells] for key, *cells in zip(keys, *columns, strict=True) if any(cells)]


def auroc_table(scores: Scores) -> pd.DataFrame:
    """A row for each class, then the mean, with the published areas beside them."""
    mean = {
        "name": "mean",
        "positives": "",
        "negatives": "",
        "auroc": scores.mean,
        "low": scores.low,
        "high": scores.high,
    }
    table = pd.DataFrame([*map(asdict, scores.classes), mean])
    for source, areas in PUBLISHED.items():
        table[source] = table["name"].map(areas).astype(float)
    return table


def auroc_markdown(scores: Scores, remark: str = "") -> str:
    """`auroc_table` as Markdown, with notes below on the intervals and the classes that are left out."""
    rows = []
    for row in auroc_table(scores).to_dict("records"):
        ends = "unknown" if np.isnan(row["low"]) else f"{row['low']:.3f}-{row['high']:.3f}"
        area = "-" if np.isnan(row["auroc"]) else f"{row['auroc']:.3f} ({ends})"
        published = ("" if np.isnan(row[source]) else f"{row[source]:.3f}" for source in PUBLISHED)
        rows.append([row["name"].replace("_", " "), str(row["positives"]), area, *published])
    table = markdown.table(["pathology", "positives", "AUROC (95 % interval)", *PUBLISHED], rows, figures="---:")
    drawn = f"{scores.patients} patients" if scores.patients is not None else "single images"
    notes = [f"{scores.images} images; intervals: percentiles of {scores.draws} bootstrap draws of {drawn}."]
    if scores.left_out:
        notes.append(f"Left out of the mean, because all images have the same answer: {', '.join(scores.left_out)}.")
    return "\n\n".join([table, *notes, *([remark] if remark else [])]) + "\n"
