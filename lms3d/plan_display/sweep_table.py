"""The step time under each memory limit: a sweep (`lms3d.engine.sweep`) as a table, as CSV and as a figure."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from pathlib import Path

from lms3d import console
from lms3d.atomic_files import write_text
from lms3d.engine.sweep import LMS, RECOMPUTE_ALL, SWAP_ALL, Point, Sweep
from lms3d.scoring.figures import steps
from lms3d.units import format_size

NOTE = "predicted, nothing was run"


def show(found: Sweep) -> None:
    """Prints two tables: the step time under each limit, and what the methods need that know no limit."""
    console.table(
        f"Step time under a memory limit ({NOTE}; {found.unedited_seconds:.2f} s without LMS)",
        ("memory limit", "of what fits without LMS", "slabs", LMS, found.tflms),
        [
            (format_size(ours.limit_bytes), f"{ours.limit_bytes / found.fit_bytes:.1%}", ours.slabs, _time(ours, found),
             _time(theirs, found))
            for ours, theirs in zip(found.of(LMS), found.of(found.tflms), strict=True)
        ],
        left=0,
    )  # fmt: skip
    console.table(
        "Methods that do not ask for a limit", ("method", "smallest limit", "step time"),
        [(p.method, format_size(p.limit_bytes), _time(p, found)) for name in (SWAP_ALL, RECOMPUTE_ALL) for p in found.of(name)],
    )  # fmt: skip
    console.say(
        f"The smallest limit with LMS is {format_size(found.floor_bytes)}, "
        f"{found.floor_bytes / found.fit_bytes:.0%} of the {format_size(found.fit_bytes)} without{_lower(found)}."
    )


def write(found: Sweep, folder: Path, what: str) -> None:
    """Writes sweep.csv, with a row per point, and sweep.png. what: the network, such as "unet3d at 96^3"."""
    text = io.StringIO()
    rows = [{**asdict(p), "relative_step_time": _ratio(p, found)} for p in found.points]
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(folder / "sweep.csv", text.getvalue())
    spots = {name: [(p.limit_bytes, p.step_seconds) for p in found.of(name) if p.step_seconds is not None]
             for name in (LMS, found.tflms, SWAP_ALL, RECOMPUTE_ALL)}  # fmt: skip
    steps.pareto(
        folder / "sweep.png", curves={name: spots[name] for name in (LMS, found.tflms)},
        points={name: spots[name][0] for name in (SWAP_ALL, RECOMPUTE_ALL)}, floor_bytes=found.floor_bytes,
        slab_floor_bytes=found.slab_floor_bytes, fit_bytes=found.fit_bytes, unedited_seconds=found.unedited_seconds,
        title=f"{what.replace('^3', '$^3$')}: {NOTE}",
    )  # fmt: skip


def _lower(found: Sweep) -> str:
    if found.slab_floor_bytes is None:
        return ""
    return f", and {format_size(found.slab_floor_bytes)} in slabs ({found.slab_floor_bytes / found.fit_bytes:.1%})"


def _ratio(point: Point, found: Sweep) -> float | None:
    return None if point.step_seconds is None else point.step_seconds / found.unedited_seconds


def _time(point: Point, found: Sweep) -> str:
    if point.step_seconds is None:
        return "does not fit"
    return f"{point.step_seconds:.2f} s ({point.step_seconds / found.unedited_seconds:.2f}x)"
