"""Speed-up and efficiency over ranks: measured, by the model, and ideal. Results -> PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lms3d.experiments.scalability import measured, table
from lms3d.experiments.scalability.communication import Link
from lms3d.experiments.scalability.measured import Measurement
from lms3d.experiments.scalability.model import STRONG, WEAK
from lms3d.scoring.figures.style import BLUE, GREEN, GREY, plain, plt, save


def draw(found: Sequence[Measurement], link: Link | None, path: Path) -> Path | None:
    """Speed-up and efficiency of real runs on this machine. None: nothing was measured."""
    if not found:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    most = max(one.ranks for one in found)
    for scaling, colour, marker in ((STRONG, BLUE, "o"), (WEAK, GREEN, "s")):
        base, these = measured.baseline(found, scaling), [one for one in found if one.scaling == scaling]
        if base is None:
            continue
        ranks, label = [one.ranks for one in these], f"{scaling}, measured"
        speed_up = [measured.speed_up(one, base) for one in these]
        efficiency = [100 * measured.efficiency(one, base) for one in these]
        for axis, values in ((left, speed_up), (right, efficiency)):
            axis.plot(ranks, values, marker + "-", color=colour, label=label)
        by_model = [(one.ranks, table.predicted(one, base, link)) for one in these]
        known = [(n, 100 * share) for n, share in by_model if share is not None]
        if known:
            right.plot(
                *zip(*known, strict=True), "--", color=colour, alpha=0.6, label=f"{scaling}, model without contention"
            )
    left.plot([1, most], [1, most], ":", color=GREY, label="ideal")
    right.axhline(100, color=GREY, linestyle=":", label="ideal")
    left.set(title="Speed-up", xlabel="ranks", ylabel="samples per second / those of one rank", ylim=(0, None))
    right.set(title="Efficiency", xlabel="ranks", ylabel="efficiency (%)", ylim=(0, None))
    for axis in (left, right):
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False)
        plain(axis)
    return save(figure, path)
