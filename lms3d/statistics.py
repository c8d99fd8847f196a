"""Figures of every step, as a CSV file that grows while training runs, and their averages. No TensorFlow here."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from pathlib import Path

COLUMNS = (
    "step",
    "kind",
    "seconds",
    "peak_bytes",
    "bytes_in_use",
    "limit_bytes",
    "swapped_out_bytes",
    "swapped_in_bytes",
    "swap_out_seconds",
    "swap_in_seconds",
    "swap_outs",
    "swap_ins",
    "recomputed_ops",
    "voxels_per_second",
)


class StepStatistics:
    """One row per step. `warm_up` first steps of each kind are left out of the averages (tracing, caches)."""

    def __init__(self, file: str | Path | None = None, *, warm_up: int = 1) -> None:
        self.file = None if file is None else Path(file)
        self.warm_up = warm_up
        self.rows: list[dict[str, float | int | str]] = []

    def add(self, row: Mapping[str, float | int | str]) -> None:
        """Keep a row and append it to the file; a resumed run goes on in the same file."""
        full = {name: row.get(name, "") for name in COLUMNS}
        self.rows.append(full)
        if self.file is None:
            return
        new = not self.file.exists()
        with self.file.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow({k: round(v, 6) if isinstance(v, float) else v for k, v in full.items()})

    def peak_bytes(self, kind: str) -> int | None:
        """The largest peak of a kind of step, the first steps included."""
        return max((int(r["peak_bytes"]) for r in self.rows if r["kind"] == kind), default=None)

    def median_seconds(self, kind: str) -> float | None:
        """The median step time after the warm-up; with fewer steps, of all of them."""
        seconds = [float(r["seconds"]) for r in self.rows if r["kind"] == kind]
        return statistics.median(seconds[self.warm_up :] or seconds) if seconds else None
