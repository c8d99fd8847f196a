"""The averages of `lms_stats.csv`, which has a row for each step: one row for each kind of step. No TensorFlow here."""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from lms3d import errors
from lms3d.atomic_files import replacing
from lms3d.keras_step.step_log import COLUMNS

LARGEST = ("peak_bytes", "host_peak_bytes")
"""The columns whose largest value is kept; all others are averaged."""
_NAMES = ("step", "kind", "plan", "epoch")
AVERAGED = ("kind", "steps", *(name for name in COLUMNS if name not in _NAMES))


def write(stats_file: Path, path: Path, *, warm_up: int) -> Path | None:
    """Writes the averages of `stats_file` over all sessions of the run, and returns `path`.

    If `stats_file` does not exist or is damaged, it writes nothing and returns None. warm_up: how many steps at the start of each
    plan are left out: they trace, plan, and fill caches.
    """
    if not stats_file.exists():
        return None
    try:
        with stats_file.open(newline="", errors="replace") as file:
            rows = averages(csv.DictReader(file), warm_up)
    except csv.Error as error:  # a power cut may leave zeros without end
        errors.say(f"{stats_file}: {error}; there are no averages of it")
        return None
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, AVERAGED)
        writer.writeheader()
        writer.writerows(rows)
    return path


def averages(rows: Iterable[Mapping[str, str]], warm_up: int) -> list[dict[str, object]]:
    """A row for each kind of step. Its `steps` says how many were averaged; if none were, all other cells are empty."""
    seen: Counter[tuple[str, str]] = Counter()
    kinds: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        kind, plan = row.get("kind") or "", row.get("plan") or ""
        counted = kinds.setdefault(kind, [])
        seen[kind, plan] += 1
        if seen[kind, plan] > warm_up:
            counted.append(row)
    return [{"kind": kind, "steps": len(counted), **_figures(counted)} for kind, counted in kinds.items() if kind]


def _figures(rows: Iterable[Mapping[str, str]]) -> dict[str, object]:
    rows = list(rows)
    found = {name: [value for row in rows if (value := _number(row.get(name))) is not None] for name in AVERAGED[2:]}
    return {name: _average(name, values) for name, values in found.items()}


def _average(name: str, values: list[float]) -> object:
    if not values:
        return ""
    return int(max(values)) if name in LARGEST else round(statistics.fmean(values), 6)


def _number(text: str | None) -> float | None:
    """The number in a cell; None if the cell is empty, or was cut off."""
    try:
        return float(text or "")
    except ValueError:
        return None
