"""Figures of every step: a CSV file that grows during training, and averages. No TensorFlow here."""

from __future__ import annotations

import csv
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lms3d import errors

COLUMNS = (
    "step",
    "kind",
    "plan",
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
    """One row per step. The first `warm_up` steps of each plan (tracing, caches) are left out of the averages.

    A resumed run appends to the file: numbers of steps and plans continue, and the file keeps its columns. A file that cannot
    be written is reported once and not tried again; training goes on. rows: the steps of this process.
    """

    def __init__(self, file: str | Path | None = None, *, warm_up: int = 1) -> None:
        self.file = None if file is None else Path(file)
        self.warm_up = warm_up
        self.rows: list[dict[str, float | int | str]] = []
        self._columns: Sequence[str] = COLUMNS
        self._steps, self._plans = -1, 0  # last numbers given
        if self.file is not None and self.file.exists():
            self._try(self._go_on, self.file)

    def next_plan(self) -> int:
        """A number for a plan: 1, 2, ..."""
        self._plans += 1
        return self._plans

    def add(self, row: Mapping[str, float | int | str]) -> None:
        """Number a row, keep it and append it to the file."""
        self._steps += 1
        full = {name: row.get(name, "") for name in COLUMNS} | {"step": self._steps}
        self.rows.append(full)
        if self.file is not None:
            self._try(self._append, self.file, full)

    def _try(self, use: Callable[..., None], file: Path, *arguments: Any) -> None:
        try:
            use(file, *arguments)
        except OSError as error:
            self.file = None
            errors.say(f"{file}: {error.strerror or error}; training goes on, and its next steps are not in this file")

    def _append(self, path: Path, row: Mapping[str, float | int | str]) -> None:
        new = not path.exists() or not path.stat().st_size
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()})

    def _go_on(self, path: Path) -> None:
        with path.open(newline="", errors="replace") as file:
            reader = csv.DictReader(file)
            self._columns = reader.fieldnames or COLUMNS
            for row in reader:
                self._steps = max(self._steps, _whole(row.get("step")))
                self._plans = max(self._plans, _whole(row.get("plan")))
        _end_line(path)

    def of_plan(self, plan: int) -> list[dict[str, float | int | str]]:
        """The steps that ran under a plan."""
        return [row for row in self.rows if row["plan"] == plan]

    def peak_bytes(self, plan: int) -> int | None:
        """The largest peak of a plan's steps, the first ones included."""
        return max((int(r["peak_bytes"]) for r in self.of_plan(plan)), default=None)

    def median_seconds(self, plan: int) -> float | None:
        """The median step time after the warm-up; with fewer steps, of all of them."""
        seconds = [float(r["seconds"]) for r in self.of_plan(plan)]
        return statistics.median(seconds[self.warm_up :] or seconds) if seconds else None


def _end_line(path: Path) -> None:
    """Completes a last line that was cut off, so that the next row starts on a line of its own."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if file.read() not in (b"", b"\n"):
            file.write(b"\n")


def _whole(text: str | None) -> int:
    """-1 where the text is no number, as in a line that was cut off."""
    return int(text) if text is not None and text.isdecimal() else -1
