"""Epoch seconds of trainings side by side, in the form of the case study's tables. No TensorFlow here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.published import X86_APART, X86_HIGH, X86_PAIRS
from experiments.harness.table import cell, markdown, write_csv

ALONE, OWN, BUS = "alone", "own", "bus"
KINDS = {ALONE: "no LMS", OWN: "LMS, a link each", BUS: "LMS, one bus for all"}
"""Kind of run -> what tables call it. ALONE: nothing but the machine is shared."""
COLUMNS = ("kind", "processes", "process", "epoch_seconds", "out_bytes_per_second", "back_bytes_per_second")
CASE_STUDY = (
    "The case study, LMS at 192³ on x86 with PCIe Gen3, mean seconds per epoch of 228 steps: 1 GPU "
    f"{X86_HIGH.epoch_seconds:,.0f}; 4 GPUs, a bus each, {X86_APART.epoch_seconds:,.0f}; 8 GPUs, pairs on a bus, "
    f"{X86_PAIRS.epoch_seconds:,.0f}: sharing a bus costs {X86_PAIRS.epoch_seconds / X86_APART.epoch_seconds - 1:.0%}."
)

Epochs = Mapping[str, Any]


def table(found: Sequence[Epochs]) -> str:
    """One row for each run."""
    most = max((part["ranks"] for part in found), default=1)
    processes = (f"process {n}" for n in range(1, most + 1))
    head = ("run", *processes, "mean", "x one alone", "x a link each", "achieved out, in")
    rows = [_cells(part, found, most) for kind in KINDS for part in found if part["kind"] == kind]
    return markdown(head, rows)


def _cells(part: Epochs, found: Sequence[Epochs], most: int) -> list[str]:
    seconds = part["epoch_seconds"]
    mean = statistics.mean(seconds)
    alone, apart = (_mean(found, *key) for key in ((part["kind"], 1), (OWN, part["ranks"])))
    return [
        f"{part['ranks']} x {KINDS[part['kind']]}",
        *(f"{one:.1f}" for one in seconds),
        *[""] * (most - len(seconds)),
        f"{mean:.1f}",
        cell(alone, lambda one: f"{mean / one:.2f}"),
        cell(apart if part["kind"] == BUS else None, lambda one: f"{mean / one:.2f}"),
        ", ".join(f"{rate / 1e9:.2f} GB/s" for way in ("out", "in") if (rate := rate_of(part["traffic"], way))),
    ]


def _mean(found: Sequence[Epochs], kind: str, number: int) -> float | None:
    known = [part["epoch_seconds"] for part in found if (part["kind"], part["ranks"]) == (kind, number)]
    return statistics.mean(known[0]) if known else None


def rate_of(traffic: Sequence[Mapping[str, float]], way: str) -> float | None:
    """The mean bytes per second of the processes while one of their transfers was under way; way: "out" or "in"."""
    pairs = [(one.get(f"swapped_{way}_bytes", 0.0), one.get(f"swap_{way}_seconds", 0.0)) for one in traffic]
    rates = [moved / seconds for moved, seconds in pairs if seconds]
    return statistics.mean(rates) if rates else None


def write_records(found: Sequence[Epochs], path: Path) -> None:
    """A row for each process."""
    records = [
        {
            "kind": KINDS[part["kind"]], "processes": part["ranks"], "process": number, "epoch_seconds": seconds,
            "out_bytes_per_second": rate_of([traffic], "out"), "back_bytes_per_second": rate_of([traffic], "in"),
        }
        for part in found
        for number, (seconds, traffic) in enumerate(zip(part["epoch_seconds"], part["traffic"], strict=True), 1)
    ]  # fmt: skip
    write_csv(path, COLUMNS, records)


def what_is_shared(numbers: Sequence[int], cores: int) -> str:
    """Besides the bus: the machine is one, and has few cores."""
    crowded = [number for number in numbers if number > cores]
    told = f"Each process is bound to one of {cores} cores; all share the memory and its bandwidth."
    if crowded:
        told += (
            f" With {' and '.join(map(str, crowded))} processes some share a core: the rows without LMS show what that takes, and "
            "`x a link each` what the bus takes besides."
        )
    return told
