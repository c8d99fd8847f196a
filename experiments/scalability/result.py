"""Measurements of whole trainings as a file that `experiments.cluster_comparison` reads. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lms3d.experiments.feeding import accepted
from lms3d.experiments.scalability.measured import Measurement


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
