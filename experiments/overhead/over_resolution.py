"""The case study's figure of overhead: what LMS costs under one memory limit, over the resolution. No TensorFlow here.

    ratio               step time with LMS under the limit / step time without LMS under a large one, at the same resolution
    resolution factor   voxels / voxels of the smallest resolution
    per voxel           step time per voxel / that of the smallest resolution without LMS: what the epoch tables compare

The ratio leaves out that a larger volume takes longer by itself; per voxel leaves out what is in proportion.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lms3d.experiments.harness import methods, published
from lms3d.experiments.harness.bench import Bench
from lms3d.experiments.harness.part import Part, Result
from lms3d.experiments.harness.table import cell, markdown, write_csv
from lms3d.experiments.overhead.schedule import Place, Wanted
from lms3d.units import format_seconds, format_size

LARGE = 16
"""The large limit as a multiple of the small one. On a CPU TensorFlow has its own allocator only under a limit: without a large one
the ratio would also compare allocators."""

METHODS = (methods.LMS, methods.COPIED, methods.TFLMS)
COLUMNS = (
    "resolution", "resolution_factor", "method", "limit_mib", "limit_share", "outcome", "step_seconds", "without_seconds", "ratio",
    "per_voxel", "peak_bytes", "swapped_out_bytes", "recomputed_ops", "slabs", "detail",
)  # fmt: skip
NOTES = f"""\
Ratio: median over the steps of (seconds with LMS under the limit / seconds of a step without LMS under {LARGE} times the limit,
on a GPU without one, taken just before in another process; before and after, if that process would hold more than a third of the
machine's memory). Factor: voxels / voxels of the smallest resolution. Per voxel: step time per voxel / that of the smallest
resolution without LMS, as the case study's epoch tables allow; its own factor is to 144³. Limit of need: the limit / the smallest
limit without LMS, predicted; if it is above 100 %, LMS has nothing to do. Slabs: level by level; results are then equal to
rounding, else to the bit."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One method at one resolution. per_voxel: None if the smallest resolution has not been measured."""

    result: Result
    factor: float
    per_voxel: float | None

    @property
    def limit_share(self) -> float | None:
        """The limit as a share of what the step needs without LMS, as predicted."""
        needs, limit = self.result.report.get("unedited_limit_bytes"), self.result.part.limit_bytes
        return limit / needs if needs and limit else None

    @property
    def without_seconds(self) -> float | None:
        """The median step without LMS, just before."""
        return statistics.median(self.result.baseline_seconds) if self.result.baseline_seconds else None


def measure(bench: Bench, wanted: Wanted, limit_mib: int) -> None:
    """Measures all resolutions with LMS first, then with the other methods: a short time leaves a whole curve."""
    for method in compared(wanted):
        for resolution in sorted(wanted.resolutions):
            bench.measure(_part(bench, wanted, method, resolution, limit_mib))


def compared(wanted: Wanted) -> list[str]:
    """The methods that are measured."""
    return [method for method in METHODS if wanted.copied or method != methods.COPIED]


def points(bench: Bench, wanted: Wanted, limit_mib: int) -> list[Point]:
    """The points that have been measured, by method and resolution."""
    found = {result.part: result for result in bench.found()}
    smallest, without = min(wanted.resolutions), None
    made = []
    for method in compared(wanted):
        for resolution in sorted(wanted.resolutions):
            result = found.get(_part(bench, wanted, method, resolution, limit_mib))
            if result is None:
                continue
            if resolution == smallest and without is None and result.baseline_seconds:
                without = statistics.median(result.baseline_seconds)
            factor = (resolution / smallest) ** 3
            seconds = result.step_seconds
            per_voxel = seconds / without / factor if seconds and without else None
            made.append(Point(result=result, factor=factor, per_voxel=per_voxel))
    return made


def _part(bench: Bench, wanted: Wanted, method: str, resolution: int, limit_mib: int) -> Part:
    """A part of the curve. Its neighbour has a large limit on a CPU, and none on a GPU, whose allocator is the same without one."""
    large = LARGE * limit_mib if wanted.copied else None
    return replace(Place(bench, wanted, resolution).part(method, limit_mib), baseline_limit_mib=large)


def case_study() -> dict[str, tuple[float, float]]:
    """System -> resolution factor, and time per voxel relative to no LMS at the smallest resolution."""
    return {f"TFLMS, V100, {one.link}": (one.voxels, one.per_voxel) for one in published.GROWTH}


def table(found: Sequence[Point]) -> str:
    """Markdown: a row for each point, and the case study's."""
    head = (
        "method", "resolution", "factor", "limit of need", "result", "step", "without LMS", "ratio", "per voxel", "swapped out",
        "slabs",
    )  # fmt: skip
    rows = [_cells(point) for point in found]
    for name, (factor, per_voxel) in case_study().items():
        rows.append([f"case study: {name}", "192³", f"{factor:.2f}", "", "", "", "", "", f"{per_voxel:.2f}", "", ""])
    return markdown(head, rows)


def _cells(point: Point) -> list[str]:
    r, part = point.result, point.result.part
    swapped = r.report.get("swapped_out_bytes", 0) if r.trained else None
    return [
        part.method, f"{part.resolution}³", f"{point.factor:.2f}", cell(point.limit_share, ".0%"), r.outcome,
        cell(r.step_seconds, format_seconds), cell(point.without_seconds, format_seconds), cell(r.ratio, ".2f"),
        cell(point.per_voxel, ".2f"), cell(swapped, format_size), r.slabs,
    ]  # fmt: skip


def write_points(found: Sequence[Point], path: Path) -> None:
    """CSV: one row for each point."""
    write_csv(path, COLUMNS, [_record(point) for point in found])


def _record(point: Point) -> dict[str, object]:
    return point.result.record() | {
        "resolution_factor": point.factor,
        "limit_share": point.limit_share,
        "without_seconds": point.without_seconds,
        "per_voxel": point.per_voxel,
    }


def draw(found: Sequence[Point], path: Path) -> Path | None:
    """The ratio over the resolution factor, a line for each method; beside it the time per voxel. None: no ratio to draw."""
    from lms3d.experiments.harness.figure import STYLE, legend_below
    from lms3d.scoring.figures.style import GREY, plain, plt, save

    drawn = [point for point in found if point.result.ratio]
    if not drawn:
        return None
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4), layout="constrained", sharex=True)
    for method in dict.fromkeys(point.result.part.method for point in drawn):
        colour, marker = STYLE[method]
        these = [point for point in drawn if point.result.part.method == method]
        look = {
            "color": colour,
            "marker": marker,
            "linestyle": "--" if method == methods.COPIED else "-",
            "label": method,
        }
        axes[0].plot([p.factor for p in these], [p.result.ratio for p in these], **look)
        axes[1].plot([p.factor for p in these], [p.per_voxel or math.nan for p in these], **look)
    for marker, (name, (factor, per_voxel)) in zip("*P", case_study().items(), strict=True):
        axes[1].plot(
            factor, per_voxel, marker, color=GREY, markersize=10, label=f"case study: {name}, factor to 144$^3$"
        )
    sides = sorted({(point.factor, point.result.part.resolution) for point in drawn})
    for axis in axes:
        axis.set_xticks([factor for factor, _ in sides], [f"{factor:.2g}\n{side}$^3$" for factor, side in sides])
        axis.set_xlabel("resolution factor")
        axis.axhline(1, color=GREY, linewidth=0.8)
        axis.set_ylim(0, 1.08 * axis.dataLim.y1)  # markers stay inside
        plain(axis)
    axes[0].set_ylabel("step time / step time without LMS")
    axes[1].set_ylabel("time per voxel (1: smallest, no LMS)")
    legend_below(figure, axes[1:], 3, fontsize=8)
    return save(figure, path)
