"""Measurements in the form of Table 7 and as CSV, with the model's predictions for this machine. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lms3d.experiments.harness import table
from lms3d.experiments.scalability import measured, model, shares
from lms3d.experiments.scalability.communication import RingLink
from lms3d.experiments.scalability.measured import Measurement
from lms3d.experiments.scalability.model import STRONG, WEAK, Cluster, ModelledJob

COLUMNS = (
    "scaling", "ranks", "model", "batch", "steps", "samples", "epoch_seconds", "step_seconds", "images_per_second",
    "speed_up", "efficiency", "step_efficiency", "predicted_efficiency", "step_cv", "epochs", "wall_seconds",
)  # fmt: skip


def this_machine(link: RingLink, base: Measurement) -> Cluster:
    """A node with the probed link and the scatter of one rank's steps; its contention is not known."""
    return Cluster(name="this machine", ranks_per_node=1 << 20, local=link, network=link, cv=base.cv)


def predicted(one: Measurement, base: Measurement, link: RingLink | None) -> float | None:
    """The step efficiency by the model, from the run of one rank and the probe; None if one is missing."""
    if link is None or base.ranks != 1 or base.step is None or one.parameters is None:
        return None
    job = ModelledJob(
        name=one.model,
        samples=base.samples,
        batch=base.batch,
        step_seconds=base.step,
        gradient_bytes=4 * one.parameters,
    )
    found = model.predict(job, this_machine(link, base), one.ranks, scaling=one.scaling, distribution=shares.ONE_ORDER)
    return found.efficiency


def rows(found: Sequence[Measurement], link: RingLink | None) -> list[dict[str, object]]:
    """A record for each measurement."""
    made: list[dict[str, object]] = []
    for one in found:
        base = measured.baseline(found, one.scaling)
        assert base is not None, "it has this scaling itself"
        made.append({
            "scaling": one.scaling, "ranks": one.ranks, "model": one.model, "batch": one.batch, "steps": one.steps,
            "samples": one.samples, "epoch_seconds": one.epoch, "step_seconds": one.step,
            "images_per_second": one.images_per_second, "speed_up": measured.speed_up(one, base),
            "efficiency": measured.efficiency(one, base), "step_efficiency": measured.step_efficiency(one, base),
            "predicted_efficiency": predicted(one, base, link), "step_cv": one.cv, "epochs": len(one.epoch_seconds),
            "wall_seconds": one.wall_seconds,
        })  # fmt: skip
    return made


def write_csv(found: Sequence[Measurement], link: RingLink | None, path: Path) -> None:
    """Writes a row for each measurement."""
    table.write_csv(path, COLUMNS, rows(found, link))


def markdown_tables(found: Sequence[Measurement], link: RingLink | None) -> str:
    """Strong and weak, in Table 7's form."""
    head = (
        "ranks", "steps an epoch", "epoch s", "images/s", "speed-up", "efficiency", "step s", "efficiency of steps",
        "by the model",
    )  # fmt: skip
    titles = {STRONG: "## Strong scaling: the same data", WEAK: "## Weak scaling: the same steps for each rank"}
    records, parts = rows(found, link), []
    for scaling, title in titles.items():
        lines = [_cells(row) for row in records if row["scaling"] == scaling]
        if lines:
            parts.append(f"{title}\n\n{table.markdown(head, lines)}")
    return "\n\n".join(parts)


def _cells(row: dict[str, object]) -> list[str]:
    def form(name: str, how: str) -> str:
        return table.cell(row[name], how)

    alone = row["ranks"] == 1
    shown = [str(row["ranks"]), str(row["steps"]), form("epoch_seconds", ".2f"), form("images_per_second", ".3g")]
    shown += ["", ""] if alone else [form("speed_up", ".2f"), form("efficiency", ".2%")]
    shown += [form("step_seconds", ".3f")]
    return shown + (["", ""] if alone else [form("step_efficiency", ".2%"), form("predicted_efficiency", ".2%")])
