"""The result file of `experiments.resnet50_benchmark` and `experiments.scaling`, read by `experiments.cluster_comparison`.

    {"format": 1, "label", "settings": {...}, "machines": [...], "versions": {...}, "command", "finished",
     "results": [{"data", "ranks", "images_per_second": Spread, "laps": [...], "efficiency", "waiting", "cores", "busy"}]}

data: a kind of images, "synthetic" or "real"; of whole trainings the kind of scaling, "strong" or "weak", and a lap is an epoch.
No host or user name is in it: it is made to be sent around. No TensorFlow at import.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lms3d.errors import InputError
from lms3d.experiments.feeding.spread import Spread, spread
from lms3d.experiments.harness.store import Record

FORMAT = 1
COMPARED = ("model", "resolution", "batch_size", "precision")
"""Settings that must be the same if two results are to be compared."""


@dataclass(frozen=True, kw_only=True)
class RankSpeed:
    """One number of ranks on one kind of data, or of one kind of scaling."""

    data: str
    ranks: int
    speed: Spread
    """Images per second of all ranks together, over laps."""
    efficiency: float | None
    """Images per second and rank, relative to the fewest ranks on the same data; None for those."""
    waiting: float | None
    """The share of time without a batch, the mean over ranks and laps; None if it was not measured."""
    cores: float | None
    busy: float


@dataclass(frozen=True, kw_only=True)
class ClusterResult:
    """A file."""

    label: str
    settings: dict[str, Any]
    points: tuple[RankSpeed, ...]
    machines: tuple[dict[str, Any], ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    path: Path = Path()


def points(parts: Sequence[Record]) -> list[RankSpeed]:
    """Parts, one for each data and number of ranks -> points, by data and ranks."""
    made: list[RankSpeed] = []
    for part in sorted(parts, key=lambda part: (part["data"] == "real", part["ranks"])):
        laps = part["laps"]
        speed = spread([lap["images_per_second"] for lap in laps])
        base = next((point for point in made if point.data == part["data"]), None)
        share = speed.mean / part["ranks"] / (base.speed.mean / base.ranks) if base else None
        made.append(
            RankSpeed(
                data=part["data"], ranks=part["ranks"], speed=speed, efficiency=share, busy=part["busy"],
                waiting=sum(lap["waiting"] for lap in laps) / len(laps), cores=sum(lap["cores"] for lap in laps) / len(laps),
            )
        )  # fmt: skip
    return made


def content(parts: Sequence[Record], label: str, settings: dict[str, Any], command: str) -> dict[str, Any]:
    """The content of the benchmark's file."""
    from lms3d.training.run_folder import versions

    machines = [machine for part in parts for machine in part["machines"]]
    laps = {(part["data"], part["ranks"]): part["laps"] for part in parts}
    results = [(point, laps[point.data, point.ranks]) for point in points(parts)]
    return file_content(results, label, settings, machines, versions(), command)


def file_content(
    results: Sequence[tuple[RankSpeed, Sequence[dict[str, Any]]]],
    label: str,
    settings: dict[str, Any],
    machines: Sequence[dict[str, Any]],
    used: dict[str, str],
    command: str,
) -> dict[str, Any]:
    """The content of a file. results: points with their laps. used: versions."""
    from datetime import UTC, datetime

    different = [machine for place, machine in enumerate(machines) if machine not in machines[:place]]
    rows = [
        {
            "data": point.data, "ranks": point.ranks, "images_per_second": asdict(point.speed), "laps": laps,
            "efficiency": point.efficiency, "waiting": point.waiting, "cores": point.cores, "busy": point.busy,
        }
        for point, laps in results
    ]  # fmt: skip
    return {
        "format": FORMAT, "label": label, "settings": settings, "machines": different, "versions": used,
        "command": command, "finished": datetime.now(UTC).isoformat(timespec="seconds"), "results": rows,
    }  # fmt: skip


def read(path: Path) -> ClusterResult:
    """The result in a file. InputError if it is not a result of the benchmark."""
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise InputError(f"format {found['format']}")
        every = tuple(
            RankSpeed(
                data=row["data"], ranks=int(row["ranks"]), speed=Spread(**row["images_per_second"]),
                efficiency=row["efficiency"], waiting=row["waiting"], cores=row["cores"], busy=row["busy"],
            )
            for row in found["results"]
        )  # fmt: skip
        settings = {name: found["settings"][name] for name in COMPARED}
        machines, versions = tuple(found["machines"]), dict(found["versions"])
        return ClusterResult(
            label=str(found["label"]), settings=settings, points=every, machines=machines, versions=versions, path=path
        )
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; give a result.json of experiments.resnet50_benchmark or experiments.scaling"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: {type(error).__name__} {error}; expected a result.json of experiments.resnet50_benchmark or "
            f"experiments.scaling, format {FORMAT}; run it again with this version"
        ) from None


def machines_in_words(machines: Iterable[Mapping[str, Any]]) -> str:
    """Each kind of machine once: its processor, cores and GPU."""
    kinds = {f"{m['processor'] or m['architecture']}, {m['cores']} cores, {m['gpu'] or 'no GPU'}" for m in machines}
    return "; ".join(sorted(kinds))
