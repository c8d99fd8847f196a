"""Measurements of whole trainings as a file that `experiments.cluster_comparison` reads. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lms3d.experiments.feeding import accepted
from lms3d.experiments.feeding.spread import spread
from lms3d.experiments.scalability import measured
from lms3d.experiments.scalability.measured import Measurement


def content(found: Sequence[Measurement], label: str, command: str) -> dict[str, Any]:
    """The content of `result.json`, in the format of `accepted`. found: not empty, all of the same training."""
    first = found[0]
    settings = {"model": first.model, "resolution": first.size, "batch_size": first.batch, "precision": first.precision}
    results = [(_point(one, found), [{"images_per_second": speed} for speed in _speeds(one)]) for one in found]
    machines = [dict(one.machine) for one in found if one.machine]
    return accepted.file_content(results, label, settings, machines, dict(first.versions), command)


def _point(one: Measurement, found: Sequence[Measurement]) -> accepted.RankSpeed:
    base = measured.baseline(found, one.scaling)
    assert base is not None, "it has this scaling itself"
    efficiency = None if one.ranks == base.ranks else measured.efficiency(one, base)
    return accepted.RankSpeed(
        data=one.scaling, ranks=one.ranks, speed=spread(_speeds(one)), efficiency=efficiency, waiting=None, cores=None,
        busy=one.busy,
    )  # fmt: skip


def _speeds(one: Measurement) -> list[float]:
    """Images per second of each epoch, over all ranks."""
    return [one.samples / seconds for seconds in one.epoch_seconds]
