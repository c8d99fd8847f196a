"""The result file of `experiments.resnet50_benchmark`: written there, read by `experiments.cluster_comparison`.

    {"format": 1, "label", "settings": {...}, "machines": [...], "versions": {...}, "command", "finished",
     "results": [{"data", "ranks", "images_per_second": Spread, "laps": [...], "efficiency", "waiting", "cores", "busy"}]}

No host or user name is in it: it is made to be sent around. No TensorFlow at import.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.feeding.parts import Part
from experiments.feeding.spread import Spread, spread
from lms3d.errors import InputError

FORMAT = 1
PACKAGES = ("tensorflow", "keras", "horovod", "numpy")
COMPARED = ("model", "resolution", "batch_size", "precision")
"""Settings without which two results are not of the same work."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One number of ranks on one kind of data."""

    data: str
    ranks: int
    speed: Spread
    """Images per second of all ranks together, over laps."""
    efficiency: float | None
    """Against the fewest ranks on the same data, per rank; None for those."""
    waiting: float
    """Share of time without a batch, mean over ranks and laps."""
    cores: float
    busy: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """A file."""

    label: str
    settings: dict[str, Any]
    points: tuple[Point, ...]
    machines: tuple[dict[str, Any], ...] = ()
    path: Path = Path()


def points(parts: Sequence[Part]) -> list[Point]:
    """Parts, one for each data and number of ranks -> points, by data and ranks."""
    made: list[Point] = []
    for part in sorted(parts, key=lambda part: (part["data"] == "real", part["ranks"])):
        laps = part["laps"]
        speed = spread([lap["images_per_second"] for lap in laps])
        base = next((point for point in made if point.data == part["data"]), None)
        share = speed.mean / part["ranks"] / (base.speed.mean / base.ranks) if base else None
        made.append(
            Point(
                data=part["data"], ranks=part["ranks"], speed=speed, efficiency=share, busy=part["busy"],
                waiting=sum(lap["waiting"] for lap in laps) / len(laps), cores=sum(lap["cores"] for lap in laps) / len(laps),
            )
        )  # fmt: skip
    return made


def content(parts: Sequence[Part], label: str, settings: dict[str, Any], command: str) -> dict[str, Any]:
    """What the file holds."""
    from datetime import UTC, datetime

    machines: list[dict[str, Any]] = []
    for part in parts:
        machines += [machine for machine in part["machines"] if machine not in machines]
    results = [
        {
            "data": point.data, "ranks": point.ranks, "images_per_second": asdict(point.speed),
            "laps": next(p["laps"] for p in parts if (p["data"], p["ranks"]) == (point.data, point.ranks)),
            "efficiency": point.efficiency, "waiting": point.waiting, "cores": point.cores, "busy": point.busy,
        }
        for point in points(parts)
    ]  # fmt: skip
    return {
        "format": FORMAT, "label": label, "settings": settings, "machines": machines, "versions": versions(),
        "command": command, "finished": datetime.now(UTC).isoformat(timespec="seconds"), "results": results,
    }  # fmt: skip


def read(path: Path) -> Result:
    """InputError where the file is not a result of the benchmark."""
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise InputError(f"format {found['format']}")
        every = tuple(
            Point(
                data=row["data"], ranks=int(row["ranks"]), speed=Spread(**row["images_per_second"]),
                efficiency=row["efficiency"], waiting=row["waiting"], cores=row["cores"], busy=row["busy"],
            )
            for row in found["results"]
        )  # fmt: skip
        settings = {name: found["settings"][name] for name in COMPARED}
        machines = tuple(found["machines"])
        return Result(label=str(found["label"]), settings=settings, points=every, machines=machines, path=path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a result.json of experiments.resnet50_benchmark") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: {type(error).__name__} {error}; expected a result.json of experiments.resnet50_benchmark, format "
            f"{FORMAT}; run the benchmark of this version"
        ) from None


def this_machine() -> dict[str, Any]:
    """What a rank runs on."""
    import platform

    import psutil
    import tensorflow as tf

    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    return {
        "architecture": platform.machine(), "processor": processor(), "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30), "kernel": platform.release(),
        "gpu": gpus[0].get("device_name", "?") if gpus else None,
    }  # fmt: skip


def processor(table: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, "" where the system does not tell."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
