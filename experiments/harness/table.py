"""Tables of a report: Markdown for people, CSV for programs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lms3d.atomic_files import replacing
from lms3d.common import markdown as texts

Form = str | Callable[[Any], str]
"""A format such as ".2f", or a function that makes a text."""
Shown = Mapping[str, tuple[str, Form]]
"""Name of a figure -> the head of its column, and its form."""


markdown = texts.table


def of_records(records: Iterable[Mapping[str, Any]], shown: Shown) -> str:
    """A Markdown table of these figures of each record. Nothing stands for what a record lacks."""
    return markdown(
        [head for head, _ in shown.values()],
        [[cell(one.get(name), form) for name, (_, form) in shown.items()] for one in records],
    )


def filled(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table without the columns that are empty in all rows."""
    columns = [column for column in zip(head, *rows, strict=True) if any(column[1:])]
    shown = list(zip(*columns, strict=True))
    return markdown(shown[0], shown[1:]) if shown else ""


def cell(value: Any, form: Form = str) -> str:
    """The value as text; "" for None."""
    if value is None:
        return ""
    return format(value, form) if isinstance(form, str) else form(value)


def write_csv(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]], figure: Callable[[float], object] | None = None
) -> None:  # fmt: skip
    """A line for each row, with its figures of these names, None as nothing. figure: how a float is written; by default with six
    decimals."""
    written = figure or (lambda value: round(value, 6))
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: written(v) if isinstance(v, float) else "" if v is None else v for k, v in row.items()})


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a file. OSError if it cannot be read."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return list(csv.DictReader(file))
