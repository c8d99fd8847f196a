"""Figures of profiled runs as Markdown, CSV and JSON. No TensorFlow here."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lms3d.experiments.harness.published import PROFILES
from lms3d.experiments.harness.table import markdown, read_csv, write_csv
from lms3d.experiments.profiling.measure import StepProfile, Transfers
from lms3d.units import format_seconds, format_size

COLUMNS = (
    "run", "device", "steps", "first_step", "step_seconds", "range_seconds", "busy_share", "idle_in_step_share", "gap_seconds",
    "waiting_seconds", "overlap_share", "transferring_alone_share", "out_bytes", "out_busy_seconds", "in_bytes", "in_busy_seconds",
    "data_share", "data_overlap_share", "allocations_per_step",
)  # fmt: skip
NOTES = """\
Over the range from the start of the first profiled step to the end of the last one. Busy: the device runs at least one operation.
GB/s: bytes over the seconds in which at least one transfer goes that way (10^9 bytes). Nothing counts twice: transfers at the same
time, or operations on two threads, are one time. Gap: from the end of a step to the start of the next one, with callbacks and the
next batch. On a GPU operations and transfers are those of its streams. On a CPU operations are those of the step,
on however many threads; a transfer is the tier's own copy between a tensor and the page cache of a swap file, and if swapped
tensors are read in place, nothing comes back. The profiler takes time itself: compare shares, not seconds."""


@dataclass(frozen=True, kw_only=True)
class ProfiledRun:
    """A profiled run. counted: (swapped_out_bytes, swapped_in_bytes) of its steps in lms_stats.csv; None if they are not there."""

    name: str
    profile: StepProfile
    counted: tuple[float, float] | None = None

    @property
    def check(self) -> str:
        """Whether profile and lms_stats.csv agree on the moved bytes."""
        if self.counted is None:
            return "not known"
        found = (self.profile.out.size_bytes, self.profile.into.size_bytes)
        return "the same" if found == self.counted else f"{self.counted[0]:,.0f} and {self.counted[1]:,.0f} bytes"


def counted_bytes(stats_file: Path, profile: StepProfile) -> tuple[float, float] | None:
    """The bytes each way of the profiled steps, as the tier counted them; None if they are not there."""
    try:
        rows = {row["step"]: row for row in read_csv(stats_file)}
        steps = range(profile.first_step, profile.first_step + len(profile.step_seconds))
        both = [[float(rows[str(n)][f"swapped_{way}_bytes"]) for n in steps] for way in ("out", "in")]
    except (OSError, KeyError, ValueError):
        return None
    return sum(both[0]), sum(both[1])


def tables(runs: Sequence[ProfiledRun]) -> str:
    """The case study's table, and one with all figures."""
    head = ("run", "device busy", "host to device", "device to host")
    rows = [(r.name, _percent(r.profile.busy_share), *_rates(r.profile)) for r in runs]
    lines = [list(cells) for cells in zip(*(figures(run) for run in runs), strict=True)]
    names = [cells[0][0] for cells in lines]
    every = [(name, *(value for _, value in cells)) for name, cells in zip(names, lines, strict=True)]
    return f"{markdown(head, [*rows, *_published()])}\n\n{markdown(('', *(run.name for run in runs)), every)}"


def _published() -> list[tuple[str, ...]]:
    """The case study's rows: V100, 192^3, steps 20-50 of epoch 2."""
    rates = [(p, (p.in_bytes_per_second, p.out_bytes_per_second)) for p in PROFILES]
    return [(f"case study: {p.title}", _percent(p.busy_share), *map(_rate, both)) for p, both in rates]


def figures(run: ProfiledRun) -> list[tuple[str, str]]:
    """Name and value of each, for people."""
    p = run.profile
    return [
        ("device", p.device),
        ("steps (numbers in lms_stats.csv)", f"{p.first_step} to {p.first_step + len(p.step_seconds) - 1}"),
        ("step, median", format_seconds(p.middle_step_seconds)),
        ("nothing computes, of the steps", _percent(p.idle_in_step_share)),
        ("only transfers go on, of the range", _percent(p.transferring_alone_share)),
        ("transfers beside computing, of their time", "" if p.overlap_share is None else _percent(p.overlap_share)),
        ("gap between batches, median", format_seconds(statistics.median(p.gap_seconds)) if p.gap_seconds else ""),
        ("gaps together, of the range", _percent(sum(p.gap_seconds) / p.range_seconds)),
        ("waiting for data", format_seconds(p.waiting_seconds)),
        ("input pipeline at work, of the range", _percent(p.data_share)),
        ("of that, beside computing", "" if p.data_overlap_share is None else _percent(p.data_overlap_share)),
        *_way("device to host", p.out, len(p.step_seconds)),
        *_way("host to device", p.into, len(p.step_seconds)),
        ("bytes both ways, by the tier's own count", run.check),
        ("allocations per step", f"{p.allocations_per_step:,.0f}"),
    ]


def write(runs: Sequence[ProfiledRun], folder: Path) -> None:
    """Writes profile.csv and profile.json."""
    from lms3d.atomic_files import write_text

    write_csv(folder / "profile.csv", COLUMNS, [_record(run) for run in runs])
    values = [{"run": run.name, "told_bytes": run.counted, **asdict(run.profile)} for run in runs]
    write_text(folder / "profile.json", json.dumps(values, indent=1) + "\n")


def _record(run: ProfiledRun) -> dict[str, Any]:
    p = run.profile
    same = {name: getattr(p, name) for name in COLUMNS if hasattr(p, name)}
    return {
        **same, "run": run.name, "steps": len(p.step_seconds), "step_seconds": p.middle_step_seconds,
        "gap_seconds": sum(p.gap_seconds), "out_bytes": p.out.size_bytes, "out_busy_seconds": p.out.busy_seconds,
        "in_bytes": p.into.size_bytes, "in_busy_seconds": p.into.busy_seconds,
    }  # fmt: skip


def _rates(profile: StepProfile) -> list[str]:
    return [_rate(link.bytes_per_busy_second) for link in (profile.into, profile.out)]


def _way(name: str, link: Transfers, steps: int) -> list[tuple[str, str]]:
    return [
        (f"{name}, per step", f"{format_size(link.size_bytes / steps)} in {link.transfers / steps:.0f} transfers"),
        (f"{name}, while the link is busy", _rate(link.bytes_per_busy_second)),
        (f"{name}, over the range", _rate(link.bytes_per_second or None)),
        (f"{name}, link busy", _percent(link.busy_seconds / link.range_seconds)),
    ]


def _rate(bytes_per_second: float | None) -> str:
    return "nothing" if bytes_per_second is None else f"{bytes_per_second / 1e9:.3g} GB/s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
