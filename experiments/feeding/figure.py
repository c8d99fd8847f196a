"""Images/s by order and number of ranks, and the share of time that the device waits. Results -> PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lms3d.experiments.feeding.results import ALONE, DEVICE, KINDS, TRAINING, middle, orders_of, values
from lms3d.experiments.harness.figure import legend_below
from lms3d.experiments.harness.store import Record
from lms3d.scoring.figures.style import BLUE, GREEN, GREY, ORANGE, plain, plt, save

COLOURS = {"old": ORANGE, "new": BLUE, "best": GREEN}
WIDTH = 0.8
"""The width of all bars at one number of ranks together."""


def draw(parts: Sequence[Record], path: Path, titles: Mapping[str, str]) -> Path | None:
    """Speeds and waits; bars are medians, whiskers the least and the most. None without parts.

    titles: of the figure (""), and of the kinds.
    """
    by_kind = {kind: [p for p in parts if p["name"].split("-")[0] == kind] for kind in KINDS}
    shown = ((ALONE, "images_per_second"), (DEVICE, "waiting"), (TRAINING, "images_per_second"), (TRAINING, "waiting"))
    panels = [(kind, name) for kind, name in shown if by_kind[kind]]
    if not panels:
        return None
    high = 2 if len(panels) > 3 else 1
    wide = -(-len(panels) // high)
    figure, axes = plt.subplots(
        high, wide, figsize=(4.8 * wide, 3.9 * high), layout="constrained", squeeze=False
    )  # fmt: skip
    for axis, (kind, name) in zip(axes.flat, panels, strict=True):
        share = name == "waiting"
        _bars(axis, by_kind[kind], name, share)
        axis.set(title=titles[kind], xlabel="ranks")
        axis.set_ylabel("device waits for data (% of time)" if share else "images/s, all ranks together")
        if share:
            axis.set_ylim(0, max(1.1 * axis.get_ylim()[1], 4))
        plain(axis)
    legend_below(figure, axes.flat)
    figure.suptitle(titles[""])
    return save(figure, path)


def _bars(axis: plt.Axes, parts: Sequence[Record], name: str, share: bool) -> None:
    orders = list(dict.fromkeys(order for part in parts for order in orders_of(part)))
    width, factor = WIDTH / len(orders), 100 if share else 1
    for k, order in enumerate(orders):
        these = [(place, part) for place, part in enumerate(parts) if order in orders_of(part)]
        at = [place + (k - (len(orders) - 1) / 2) * width for place, _ in these]
        heights = [factor * (middle(part, order, name) or 0.0) for _, part in these]
        found = [[factor * value for value in values(part, order, name)] for _, part in these]
        reach = [
            [h - min(v) for h, v in zip(heights, found, strict=True)],
            [max(v) - h for h, v in zip(heights, found, strict=True)],
        ]
        label = f"{order} order"
        axis.bar(at, heights, 0.92 * width, yerr=reach, color=COLOURS[order], label=label, capsize=3, ecolor=GREY)
        for x, height, top in zip(at, heights, found, strict=True):
            words = f"{height:.2g}" if share else f"{height:.3g}" if height < 1000 else f"{height:.0f}"
            axis.annotate(words, (x, max(top)), (0, 4), textcoords="offset points", ha="center", fontsize=8)
    axis.set_xticks(range(len(parts)), [str(part["ranks"]) for part in parts])
    axis.margins(y=0.12)
