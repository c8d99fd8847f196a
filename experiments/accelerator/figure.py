"""Results -> PNG: what a limit costs in time, and the largest cubes."""

from __future__ import annotations

from pathlib import Path

from lms3d.experiments.accelerator import sections, tables
from lms3d.experiments.accelerator.scale import GIB, Scale
from lms3d.experiments.harness import methods
from lms3d.experiments.harness.figure import STYLE
from lms3d.experiments.harness.part import MIB, Part, Result
from lms3d.scoring.figures.style import plain, plt, save
from lms3d.units import format_size

MOST = 6.0  # ratio: with larger ones the axis is logarithmic
COMPARED = ("limits", "large", "precision")


def draw(found: tables.Found, scale: Scale, path: Path) -> Path | None:
    """The path of the picture; None if there is nothing to draw."""
    if not any(result.trained for result in found.values()):
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    _costs(left, found, scale)
    _cubes(right, found, scale)
    return save(figure, path)


def _costs(axis: plt.Axes, found: tables.Found, scale: Scale) -> None:
    """Each cube and precision beside its own step without LMS."""
    points: dict[Part, tuple[Result, float, float]] = {}
    for section in COMPARED:
        made = [r for r in tables.results(found, section, scale) if r.trained and r.step_seconds and r.peak_bytes]
        without = next((r for r in made if r.part.method == methods.NONE), None)
        if without is not None:
            points |= {r.part: (r, (r.peak_bytes or 0) / GIB, tables.ratio(r, without) or 0.0) for r in made}
    named = set()
    for result, gib, ratio in points.values():
        colour, marker = STYLE[result.part.method]
        label = result.part.method if result.part.method not in named else None
        named.add(result.part.method)
        axis.plot(gib, ratio, marker, color=colour, label=label)
        size = f"{result.part.resolution}$^3${'' if result.part.precision == 'float32' else ', 16 bits'}"
        axis.annotate(size, (gib, ratio), (5, 4), textcoords="offset points", fontsize=7)
    axis.set(
        xlabel="peak of the allocator (GiB)", ylabel="step time / step time without LMS", title="What a limit costs"
    )
    axis.set_xlim(left=0)
    if max((ratio for *_, ratio in points.values()), default=0.0) > MOST:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    plain(axis)
    if points:
        axis.legend(frameon=False, fontsize=8)


def _cubes(axis: plt.Axes, found: tables.Found, scale: Scale) -> None:
    """The largest cube that trained in each search."""
    tried = tables.results(found, "cubes", scale)
    for at, (method, limit) in enumerate(sections.searches(scale)):
        sides = [r.part.resolution for r in tried if r.trained and (r.part.method, r.part.limit_mib) == (method, limit)]
        if sides:
            where = "whole card" if limit is None else format_size(limit * MIB)
            axis.barh(at, max(sides), color=STYLE[method][0])
            axis.text(max(sides), at, f" {max(sides)}$^3$   {method}, {where}", va="center", fontsize=8)
    axis.set(xlabel="side of the largest cube that trained", title="The largest cube", yticks=[])
    axis.set_xlim(0, 1.8 * max(scale.sides))
    axis.invert_yaxis()
    plain(axis)
