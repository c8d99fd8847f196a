"""The text of a report: its sections, its gaps, and the machine that it is about. No TensorFlow here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from lms3d.atomic_files import write_text
from lms3d.experiments.harness import store
from lms3d.experiments.harness.store import Record, StudyStore
from lms3d.units import format_size

BUSY = 0.15
"""The share of the cores in use by other programs above which a measurement counts as disturbed."""


def write(path: Path, sections: Iterable[str]) -> str:
    """Writes the sections that are not empty, with a blank line between them, and returns the text."""
    text = "\n\n".join(filter(None, sections)) + "\n"
    write_text(path, text)
    return text


def publish(path: Path, sections: Iterable[str]) -> None:
    """Writes the sections, prints them, and says where all files are."""
    print(write(path, sections))
    print(f"written: {path.parent}")


def lists(titled: Mapping[str, Sequence[str]]) -> list[str]:
    """A Markdown list below each title; nothing for a list that is empty."""
    return ["\n".join([f"{title}:", *(f"- {line}" for line in lines)]) for title, lines in titled.items() if lines]


def gaps(known: StudyStore, found: Sequence[Record] = (), disturbed: str = "The machine was not idle") -> list[str]:
    """Lists of the measurements that other work disturbed, that were skipped, and that failed."""
    busy = [f"{one['name']}: {one['busy']:.0%} of the cores in use by others" for one in found if one["busy"] > BUSY]
    return lists({disturbed: busy, "Skipped": known.skipped, "Failed": known.failed})


def machine(bound: str = "", devices: Sequence[str] = ()) -> str:
    """A sentence about this machine. bound: how its cores are shared out. devices: its GPUs."""
    from lms3d.device.machine import processor
    from lms3d.training import run_folder

    versions = run_folder.versions()
    libraries = ", ".join(f"{name} {versions[name]}" for name in ("tensorflow", "keras") if name in versions)
    cores = f"{os.cpu_count()} cores ({', '.join([processor(), *devices, *([bound] if bound else [])])})"
    memory = format_size(psutil.virtual_memory().total)
    return f"Machine: {cores}, {memory} of memory; {libraries}; {datetime.now(UTC):%Y-%m-%d}."


def effort(results: Sequence[Any]) -> str:
    """How long all parts took, and how many of them were measured with other code than today's."""
    minutes = sum(result.wall_seconds for result in results) / 60
    earlier = sum(result.code not in ("", store.code_digest()) for result in results)
    old = f" {earlier} of {len(results)} parts were measured before the last change of the code." if earlier else ""
    return f"All parts together took {minutes:.0f} min.{old}"
