"""The case study's figure of overhead: what LMS costs under one memory limit, over the resolution. No TensorFlow here.

    ratio               step time with LMS under the limit / step time without LMS under a large one, at the same resolution
    resolution factor   voxels / voxels of the smallest resolution
    per voxel           step time per voxel / that of the smallest resolution without LMS: what the epoch tables compare

The ratio leaves out that a larger volume takes longer by itself; per voxel leaves out what is in proportion.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lms3d.experiments.harness import methods, published
from lms3d.experiments.harness.bench import Bench
from lms3d.experiments.harness.part import MIB, StudyPart
from lms3d.experiments.harness.table import Shown, of_records
from lms3d.experiments.overhead.schedule import PartsOfSize, Wanted
from lms3d.units import format_seconds, format_size

LARGE = 16
"""The large limit as a multiple of the small one. On a CPU TensorFlow has its own allocator only under a limit: without a large one
the ratio would also compare allocators."""

Figures = dict[str, Any]

METHODS = (methods.LMS, methods.COPIED, methods.TFLMS)
COLUMNS = (
    "resolution", "resolution_factor", "method", "limit_mib", "limit_share", "outcome", "step_seconds", "without_seconds", "ratio",
    "per_voxel", "peak_bytes", "swapped_out_bytes", "recomputed_ops", "slabs", "detail",
)  # fmt: skip
SHOWN: Shown = {
    "method": ("method", str), "resolution": ("resolution", "{}³".format), "resolution_factor": ("factor", ".2f"),
    "limit_share": ("limit of need", ".0%"), "outcome": ("result", str), "step_seconds": ("step", format_seconds),
    "without_seconds": ("without LMS", format_seconds), "ratio": ("ratio", ".2f"), "per_voxel": ("per voxel", ".2f"),
    "swapped_out_bytes": ("swapped out", format_size), "slabs": ("slabs", str),
}  # fmt: skip
NOTES = f"""\
Ratio: median over the steps of (seconds with LMS under the limit / seconds of a step without LMS under {LARGE} times the limit,
on a GPU without one, taken just before in another process; before and after, if that process would hold more than a third of the
machine's memory). Factor: voxels / voxels of the smallest resolution. Per voxel: step time per voxel / that of the smallest
resolution without LMS, as the case study's epoch tables allow; its own factor is to 144³. Limit of need: the limit / the smallest
limit without LMS, predicted; if it is above 100 %, LMS has nothing to do. Slabs: level by level; results are then equal to
rounding, else to the bit."""


def measure(bench: Bench, wanted: Wanted, limit_mib: int) -> None:
    """Measures all resolutions with LMS first, then with the other methods: a short time leaves a whole curve."""
    for method in compared(wanted):
        for resolution in sorted(wanted.resolutions):
            bench.measure(_part(bench, wanted, method, resolution, limit_mib))


def compared(wanted: Wanted) -> list[str]:
    """The methods that are measured."""
    return [method for method in METHODS if wanted.copied or method != methods.COPIED]


def rows(bench: Bench, wanted: Wanted, limit_mib: int) -> list[Figures]:
    """The figures that have been measured, by the names in COLUMNS, by method and resolution."""
    found = {result.part: result for result in bench.found()}
    smallest, alone, made = min(wanted.resolutions), None, list[Figures]()
    for method in compared(wanted):
        for resolution in sorted(wanted.resolutions):
            result = found.get(_part(bench, wanted, method, resolution, limit_mib))
            if result is None:
                continue
            without = statistics.median(result.baseline_seconds) if result.baseline_seconds else None
            alone = alone or (without if resolution == smallest else None)
            factor, needs = (resolution / smallest) ** 3, result.report.get("unedited_limit_bytes")
            seconds = result.step_seconds
            made.append(
                result.record()
                | {
                    "resolution_factor": factor,
                    "limit_share": limit_mib * MIB / needs if needs else None,
                    "without_seconds": without,
                    "per_voxel": seconds / alone / factor if seconds and alone else None,
                }
            )
    return made


def _part(bench: Bench, wanted: Wanted, method: str, resolution: int, limit_mib: int) -> StudyPart:
    """A part of the curve. Its neighbour has a large limit on a CPU, and none on a GPU, whose allocator is the same without one."""
    large = LARGE * limit_mib if wanted.copied else None
    return replace(PartsOfSize(bench, wanted, resolution).part(method, limit_mib), baseline_limit_mib=large)


def table(found: Sequence[Figures]) -> str:
    """Markdown: a row for each method and resolution, and the case study's."""
    rivals = [
        {"method": f"case study: TFLMS, V100, {one.link}", "resolution": one.high.side, "resolution_factor": one.voxels,
         "per_voxel": one.per_voxel}
        for one in published.GROWTH
    ]  # fmt: skip
    return of_records([*found, *rivals], SHOWN)
