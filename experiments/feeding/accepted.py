"""The result file of `experiments.resnet50_benchmark` and `experiments.scaling`, read by `experiments.cluster_comparison`.

    {"format": 1, "label", "settings": {...}, "machines": [...], "versions": {...}, "command", "finished",
     "results": [{"data", "ranks", "images_per_second": Spread, "laps": [...], "efficiency", "waiting", "cores", "busy"}]}

data: a kind of images, "synthetic" or "real"; of whole trainings the kind of scaling, "strong" or "weak", and a lap is an epoch.
No host or user name is in it: it is made to be sent around. No TensorFlow at import.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lms3d.errors import InputError
from lms3d.experiments.harness.store import Record

FORMAT = 1
COMPARED = ("model", "resolution", "batch_size", "precision")
"""Settings that must be the same if two results are to be compared."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The mean and spread of `count` values; std and interval are None for a single one."""

    count: int
    mean: float
    std: float | None
    """The standard deviation of the values (divided by count - 1)."""
    low: float | None
    high: float | None
    """95 % interval of the mean, by Student's t: few values, whose spread is known by themselves alone."""

    @property
    def interval(self) -> str:
        """The interval in words; "" for a single value."""
        return "" if self.low is None or self.high is None else f"{self.low:.4g} to {self.high:.4g}"


def spread(values: Sequence[float]) -> Spread:
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return Spread(count=count, mean=mean, std=None, low=None, high=None)
    from scipy import stats

    std = statistics.stdev(values)
    half = float(stats.t.ppf(0.975, count - 1)) * std / count**0.5
    return Spread(count=count, mean=mean, std=std, low=mean - half, high=mean + half)


def difference(a: Spread, b: Spread) -> tuple[float, float | None]:
    """a / b - 1 and half of its 95 % interval, by Welch's t and the first order of the ratio; None if one has a single value."""
    share = a.mean / b.mean - 1
    if a.std is None or b.std is None:
        return share, None
    from scipy import stats

    parts = [(one.std or 0.0) ** 2 / one.count / one.mean**2 for one in (a, b)]  # squared relative errors
    total = sum(parts)
    if not total:
        return share, 0.0
    freedom = total**2 / sum(p**2 / (one.count - 1) for p, one in zip(parts, (a, b), strict=True))
    return share, float(stats.t.ppf(0.975, freedom)) * (1 + share) * total**0.5


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


_KEPT = [one.name for one in fields(RankSpeed) if one.name != "speed"]


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
    order = list(dict.fromkeys(part["data"] for part in parts))
    for part in sorted(parts, key=lambda part: (order.index(part["data"]), part["ranks"])):
        laps = part["laps"]
        speed = spread([lap["images_per_second"] for lap in laps])
        base = next((point for point in made if point.data == part["data"]), None)
        share = speed.mean / part["ranks"] / (base.speed.mean / base.ranks) if base else None
        means = {
            name: sum(lap[name] for lap in laps) / len(laps) if name in laps[0] else None
            for name in ("waiting", "cores")
        }
        made.append(
            RankSpeed(data=part["data"], ranks=part["ranks"], speed=speed, efficiency=share, busy=part["busy"], **means)
        )
    return made


def content(
    parts: Sequence[Record], label: str, settings: dict[str, Any], command: str, used: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The content of a file. parts: `data`, `ranks`, `laps`, `machines` and `busy` of each. used: versions; by default this
    process's."""
    from datetime import UTC, datetime

    from lms3d.training.run_folder import versions

    machines = [machine for part in parts for machine in part["machines"]]
    laps = {(part["data"], part["ranks"]): part["laps"] for part in parts}
    rows = [
        {**asdict(point), "images_per_second": asdict(point.speed), "laps": laps[point.data, point.ranks]}
        for point in points(parts)
    ]
    for row in rows:
        del row["speed"]
    return {
        "format": FORMAT, "label": label, "settings": settings,
        "machines": [machine for place, machine in enumerate(machines) if machine not in machines[:place]],
        "versions": dict(versions() if used is None else used), "command": command,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"), "results": rows,
    }  # fmt: skip


def read(path: Path) -> ClusterResult:
    """The result in a file. InputError if it is not a result of the benchmark."""
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise InputError(f"format {found['format']}")
        every = tuple(
            RankSpeed(speed=Spread(**row["images_per_second"]), **{name: row[name] for name in _KEPT})
            for row in found["results"]
        )
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
