"""Parts of `experiments.input_pipeline` -> CSV and Markdown. No TensorFlow here."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lms3d.experiments.harness import table
from lms3d.experiments.harness.store import Record

ALONE, DEVICE, TRAINING = "alone", "device", "training"
KINDS = {
    ALONE: "The pipelines alone",
    DEVICE: "Beside a device that computes without these cores",
    TRAINING: "While training",
}
PAIRS = (("new", "old"), ("best", "new"))
"""(order, the order that it is compared with)."""
COLUMNS = (
    "kind", "ranks", "order", "images_per_second", "least", "most", "images_per_cpu_second", "cores", "waiting",
    "waiting_most", "rounds",
)  # fmt: skip
MEDIANS = ("images_per_second", "images_per_cpu_second", "cores", "waiting", "waiting_most")
SHOWN: table.Shown = {
    "ranks": ("ranks", str), "order": ("order", str), "images_per_second": ("images/s", ".4g"), "range": ("least to most", str),
    "images_per_cpu_second": ("images per CPU second", ".4g"), "waiting": ("device waits", ".2%"),
    "waiting_most": ("rank that waits most", ".2%"), "cores": ("cores in use", ".2f"),
}  # fmt: skip


def values(part: Record, order: str, name: str) -> list[float]:
    """The values of all rounds in which it is known."""
    return [found[order][name] for found in part["rounds"] if found[order].get(name) is not None]


def middle(part: Record, order: str, name: str) -> float | None:
    """The median over the rounds."""
    found = values(part, order, name)
    return statistics.median(found) if found else None


def ratios(part: Record, order: str, other: str, name: str = "images_per_second") -> list[float]:
    """order / other in each round, so that other work on the machine slows both."""
    return [a / b for a, b in zip(values(part, order, name), values(part, other, name), strict=True)]


def run_ratios(part: Record, order: str, other: str, name: str = "images_per_second") -> list[float]:
    """The median of each run."""
    of_run: dict[int, list[float]] = {}
    for found, ratio in zip(part["rounds"], ratios(part, order, other, name), strict=True):
        of_run.setdefault(found.get("run", 0), []).append(ratio)
    return [statistics.median(found) for found in of_run.values()]


def orders_of(part: Record) -> list[str]:
    """The orders that were measured, old first."""
    return [order for order in ("old", "new", "best") if order in part["rounds"][0]]


def rows(parts: Sequence[Record]) -> list[dict[str, object]]:
    """One record for each part and order."""
    made: list[dict[str, object]] = []
    for part in parts:
        for order in orders_of(part):
            speeds = values(part, order, "images_per_second")
            made.append({
                "kind": part["name"].split("-")[0], "ranks": part["ranks"], "order": order, "least": min(speeds),
                "most": max(speeds), "rounds": len(speeds), "range": f"{min(speeds):.4g} to {max(speeds):.4g}",
                **{name: middle(part, order, name) for name in MEDIANS},
            })  # fmt: skip
    return made


def tables(parts: Sequence[Record]) -> str:
    """A table for each kind of measurement, then ratios."""
    every, texts = rows(parts), []
    for kind, title in KINDS.items():
        left_out = ("waiting", "waiting_most") if kind == ALONE else ("images_per_cpu_second",)
        shown = {name: column for name, column in SHOWN.items() if name not in left_out}
        if these := [row for row in every if row["kind"] == kind]:
            texts.append(f"## {title}\n\n{table.of_records(these, shown)}")
    compared = [
        _ratio_row(part, order, other)
        for part in parts
        for order, other in PAIRS
        if part["name"].split("-")[0] == ALONE and {order, other} <= set(orders_of(part))
    ]
    if compared:
        head = ("images/s alone", "ranks", "found", "runs", "by CPU time", "others")
        texts.append(f"## Ratios of the orders\n\n{table.markdown(head, compared)}")
    return "\n\n".join(texts)


def _ratio_row(part: Record, order: str, other: str) -> list[str]:
    found, runs = ratios(part, order, other), run_ratios(part, order, other)
    by_cpu = statistics.median(run_ratios(part, order, other, "images_per_cpu_second"))
    others = statistics.median([*values(part, order, "others"), *values(part, other, "others")] or [0.0])
    shown = f"{statistics.median(runs):.2f} ({min(found):.2f} to {max(found):.2f})"
    each = ", ".join(f"{one:.2f}" for one in runs)
    return [f"{order} / {other}", str(part["ranks"]), shown, each, f"{by_cpu:.2f}", f"{others:.1f} cores"]
