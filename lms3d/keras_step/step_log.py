"""Figures of every step: a CSV file that grows during training, and averages. No TensorFlow here."""

from __future__ import annotations

import csv
import os
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    "epoch",
    "host_bytes_in_use",
    "host_peak_bytes",
)
"""A cell is empty if its figure is unknown: the seconds of transfers if the tier does not measure them, the epoch outside `fit`,
host bytes except on Linux."""


KEPT_SECONDS = 1000
"""How many of a plan's latest step times its median is taken over. A run may have millions of steps."""

_MOST_DIGITS = 18  # nobody has counted further: a longer number is damaged


@dataclass
class PlanFigures:
    """The figures of one plan's steps. seconds: of the latest steps; of the first `warm_up` only until others follow."""

    steps: int = 0
    peak_bytes: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_SECONDS))

    def add(self, row: Mapping[str, float | int | str], warm_up: int) -> None:
        if self.steps == warm_up:
            self.seconds.clear()
        self.steps += 1
        self.peak_bytes = max(self.peak_bytes, int(row["peak_bytes"]))
        self.seconds.append(float(row["seconds"]))


class StepStatistics:
    """A file with one row per step, and the figures of each plan. The median leaves out the first `warm_up` steps of each plan,
    which trace and fill caches.

    A resumed run appends to the file: the numbers of steps and plans continue, and the file keeps its columns. If the file cannot
    be written, that is reported once, and training goes on without it. steps: how many this process has added. epoch: the epoch
    of the next rows, from 1; None outside `fit`.
    """

    def __init__(self, file: str | Path | None = None, *, warm_up: int = 1) -> None:
        self.file = None if file is None else Path(file)
        self.warm_up = warm_up
        self.steps = 0
        self.epoch: int | None = None
        self._figures: dict[int, PlanFigures] = {}
        self._columns: Sequence[str] = COLUMNS
        self._steps, self._plans = -1, 0  # last numbers given
        if self.file is not None and self.file.exists():
            self._try(self._continue, self.file)

    def next_plan(self) -> int:
        """The number of a new plan: 1, 2, ..."""
        self._plans += 1
        return self._plans

    @property
    def next_step(self) -> int:
        """The number of the next row."""
        return self._steps + 1

    def add(self, row: Mapping[str, float | int | str]) -> None:
        """Numbers a row, counts it and appends it to the file."""
        self._steps += 1
        self.steps += 1
        known = dict(row) if self.epoch is None else {**row, "epoch": self.epoch}
        full = {name: known.get(name, "") for name in COLUMNS} | {"step": self._steps}
        self._figures.setdefault(int(row["plan"]), PlanFigures()).add(full, self.warm_up)
        if self.file is not None:
            self._try(self._append, self.file, full)

    def _try(self, use: Callable[..., None], file: Path, *arguments: Any) -> None:
        try:
            use(file, *arguments)
        except (OSError, csv.Error) as error:  # a power cut may leave zeros without end
            self.file = None
            reason = getattr(error, "strerror", None) or error
            errors.say(f"{file}: {reason}; training goes on, and its next steps are not in this file")

    def _append(self, path: Path, row: Mapping[str, float | int | str]) -> None:
        new = not path.exists() or not path.stat().st_size
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()})

    def _continue(self, path: Path) -> None:
        with path.open(newline="", errors="replace") as file:
            reader = csv.DictReader(file)
            self._columns = reader.fieldnames or COLUMNS
            for row in reader:
                self._steps = max(self._steps, _whole(row.get("step")))
                self._plans = max(self._plans, _whole(row.get("plan")))
        _end_line(path)

    def forget(self, plan: int) -> None:
        """Drops the figures of a plan that will not run again."""
        self._figures.pop(plan, None)

    def steps_of(self, plan: int) -> int:
        """How many steps have run under a plan."""
        return self._figures[plan].steps if plan in self._figures else 0

    def peak_bytes(self, plan: int) -> int | None:
        """The largest peak of all steps of a plan; None if none has run."""
        return self._figures[plan].peak_bytes if plan in self._figures else None

    def median_seconds(self, plan: int) -> float | None:
        """The median of the latest step times after the warm-up, or of all if there are no others; None if no step has run."""
        return statistics.median(self._figures[plan].seconds) if plan in self._figures else None


def _end_line(path: Path) -> None:
    """Completes a last line that was cut off, so that the next row starts on a line of its own."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if file.read() not in (b"", b"\n"):
            file.write(b"\n")


def _whole(text: str | None) -> int:
    """The number in a cell; -1 if it holds no number of steps, as in a line that was cut off."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _MOST_DIGITS else -1
