"""The times of training runs: from their files; as a table in the form of Table 7, as CSV, and as a file to compare. Beside them
stands what the model predicts for this machine. No TensorFlow here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.errors import InputError
from lms3d.experiments.feeding import accepted
from lms3d.experiments.harness import runs, table
from lms3d.experiments.scalability import model
from lms3d.experiments.scalability.model import STRONG, WEAK, Cluster, ModelledJob, RingLink

COLUMNS = (
    "scaling", "ranks", "model", "batch", "steps", "samples", "epoch_seconds", "step_seconds", "images_per_second",
    "speed_up", "efficiency", "step_efficiency", "predicted_efficiency", "step_cv", "epochs", "wall_seconds",
)  # fmt: skip
SHOWN: table.Shown = {
    "ranks": ("ranks", str), "steps": ("steps an epoch", str), "epoch_seconds": ("epoch s", ".2f"),
    "images_per_second": ("images/s", ".3g"), "speed_up": ("speed-up", ".2f"), "efficiency": ("efficiency", ".2%"),
    "step_seconds": ("step s", ".3f"), "step_efficiency": ("efficiency of steps", ".2%"),
    "predicted_efficiency": ("by the model", ".2%"),
}  # fmt: skip
WARM_UP_EPOCHS = 1
"""Epochs that are left out: they trace, plan, and fill caches."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The times of a run on `ranks` ranks, without its first epoch."""

    scaling: str
    ranks: int
    batch: int
    """Samples of a step on each rank."""

    steps: int
    """Steps of each rank in an epoch."""

    epoch_seconds: tuple[float, ...]
    """Training, validation and saving."""

    step_seconds: tuple[float, ...] = ()
    """The training steps of rank 0; empty if the run has no lms_stats.csv."""

    model: str = ""
    parameters: int | None = None
    """The weights of the network, in float32, which the ranks average; None if the run has no best.keras."""

    wall_seconds: float = 0.0
    """The seconds of the whole run, with start and warm-up."""

    busy: float = 0.0
    """The share of the machine's cores that other programs used just before."""

    size: str = ""
    """The sides of an image."""

    precision: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """The machine that rank 0 ran on."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of the libraries that it used."""

    @property
    def name(self) -> str:
        return f"{self.scaling}-{self.ranks}"

    @property
    def samples(self) -> int:
        """The samples of an epoch, over all ranks."""
        return self.ranks * self.batch * self.steps

    @property
    def epoch(self) -> float:
        """The median epoch in seconds."""
        return statistics.median(self.epoch_seconds)

    @property
    def step(self) -> float | None:
        """The median training step in seconds."""
        return statistics.median(self.step_seconds) if self.step_seconds else None

    @property
    def images_per_second(self) -> float:
        """The rate over whole epochs."""
        return self.samples / self.epoch

    @property
    def cv(self) -> float:
        """The coefficient of variation of the step times, from the middle 68 %: single long steps are no scatter."""
        if len(self.step_seconds) < 2:
            return 0.0
        low, middle, high = np.percentile(self.step_seconds, (16, 50, 84))
        return float((high - low) / 2 / middle)

    @classmethod
    def of(cls, part: Mapping[str, Any]) -> Measurement:
        """The measurement in a stored record."""
        known: dict[str, Any] = {one.name: part[one.name] for one in fields(cls) if one.name in part}
        lists = {name: tuple(known[name]) for name in ("epoch_seconds", "step_seconds")}
        return cls(**{**known, **lists})


def read(run_dir: Path, *, scaling: str, ranks: int) -> Measurement:
    """The measurement in a finished run. InputError if a file is missing or too short."""
    epochs = runs.epoch_seconds(run_dir)
    if len(epochs) <= WARM_UP_EPOCHS:
        raise InputError(
            f"{run_dir / 'history.csv'}: found {len(epochs)} epochs, expected at least {WARM_UP_EPOCHS + 1}, since the first "
            "is warm-up; give more --epochs, and no limit that stops earlier"
        )
    written = runs.written(run_dir)
    options = written.get("options", {})
    steps = [float(row["seconds"]) for row in runs.training_steps(run_dir)]
    per_epoch = options.get("steps_per_epoch") or len(steps) // len(epochs)
    if not per_epoch:
        raise InputError(
            f"{run_dir}: neither config.json nor lms_stats.csv tells the steps of an epoch; give --steps-per-epoch"
        )
    return Measurement(
        scaling=scaling, ranks=ranks, batch=int(options.get("batch_size") or 1), steps=int(per_epoch),
        epoch_seconds=tuple(epochs[WARM_UP_EPOCHS:]), step_seconds=tuple(steps[WARM_UP_EPOCHS * int(per_epoch) :]),
        model=str(options.get("model") or ""), parameters=runs.weight_count(run_dir),
        size=_size(options), precision=str(options.get("precision") or ""),
        machine=written.get("machine", {}), versions=written.get("versions", {}),
    )  # fmt: skip


def baseline(found: Iterable[Measurement], scaling: str) -> Measurement | None:
    """The run with the fewest ranks, which the others are compared with."""
    return min((one for one in found if one.scaling == scaling), key=lambda one: one.ranks, default=None)


def speed_up(one: Measurement, base: Measurement) -> float:
    """Samples per second, relative to one rank (if the base has more, as if it had scaled perfectly)."""
    return base.ranks * one.images_per_second / base.images_per_second


def efficiency(one: Measurement, base: Measurement) -> float:
    return speed_up(one, base) / one.ranks


def step_efficiency(one: Measurement, base: Measurement) -> float | None:
    """The efficiency of the training steps alone, without validation, saving, and the time between steps."""
    if one.step is None or base.step is None:
        return None
    return base.step / one.step * one.batch / base.batch


def _size(options: Mapping[str, Any]) -> str:
    """The size of the network's inputs: of patches, else boxes, else cubes or squares."""
    for name in ("patch", "box", "resolution"):
        if given := options.get(name):
            return "x".join(map(str, given)) if isinstance(given, list) else str(given)
    return ""


def this_machine(link: RingLink, base: Measurement) -> Cluster:
    """A node with the probed link and the scatter of one rank's steps; its contention is not known."""
    return Cluster(ranks_per_node=1 << 20, local=link, network=link, cv=base.cv)


def predicted(one: Measurement, base: Measurement, link: RingLink | None) -> float | None:
    """The step efficiency by the model, from the run of one rank and the probe; None if one is missing."""
    if link is None or base.ranks != 1 or base.step is None or one.parameters is None:
        return None
    job = ModelledJob(
        samples=base.samples, batch=base.batch, step_seconds=base.step, gradient_bytes=4 * one.parameters
    )  # fmt: skip
    return model.predict(job, this_machine(link, base), one.ranks, scaling=one.scaling).efficiency


def rows(found: Sequence[Measurement], link: RingLink | None) -> list[dict[str, object]]:
    """A record for each measurement."""
    made: list[dict[str, object]] = []
    for one in found:
        base = baseline(found, one.scaling)
        assert base is not None, "it has this scaling itself"
        made.append({
            "scaling": one.scaling, "ranks": one.ranks, "model": one.model, "batch": one.batch, "steps": one.steps,
            "samples": one.samples, "epoch_seconds": one.epoch, "step_seconds": one.step,
            "images_per_second": one.images_per_second, "speed_up": speed_up(one, base),
            "efficiency": efficiency(one, base), "step_efficiency": step_efficiency(one, base),
            "predicted_efficiency": predicted(one, base, link), "step_cv": one.cv, "epochs": len(one.epoch_seconds),
            "wall_seconds": one.wall_seconds,
        })  # fmt: skip
    return made


def markdown_tables(found: Sequence[Measurement], link: RingLink | None) -> str:
    """Strong and weak, in Table 7's form. One rank has nothing to be compared with."""
    titles = {STRONG: "## Strong scaling: the same data", WEAK: "## Weak scaling: the same steps for each rank"}
    compared = ("speed_up", "efficiency", "step_efficiency", "predicted_efficiency")
    records = [row | dict.fromkeys(compared) if row["ranks"] == 1 else row for row in rows(found, link)]
    parts = {title: [row for row in records if row["scaling"] == scaling] for scaling, title in titles.items()}
    return "\n\n".join(f"{title}\n\n{table.of_records(some, SHOWN)}" for title, some in parts.items() if some)


def content(found: Sequence[Measurement], label: str, command: str) -> dict[str, Any]:
    """The content of `result.json`, in the format of `accepted`; a lap is an epoch. found: not empty, all of the same training."""
    first = found[0]
    settings = {"model": first.model, "resolution": first.size, "batch_size": first.batch, "precision": first.precision}
    parts = [
        {
            "data": one.scaling, "ranks": one.ranks, "busy": one.busy, "machines": [dict(one.machine)] if one.machine else [],
            "laps": [{"images_per_second": one.samples / seconds} for seconds in one.epoch_seconds],
        }
        for one in found
    ]  # fmt: skip
    return accepted.content(parts, label, settings, command, first.versions)
