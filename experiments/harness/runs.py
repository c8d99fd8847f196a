"""What the files of a training run say: history.csv, lms_stats.csv, config.json and best.keras. No TensorFlow here."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from lms3d.experiments.harness.table import read_csv


def epochs(run_dir: Path) -> list[dict[str, str]]:
    """The rows of history.csv, one for each finished epoch; none if there is no such file."""
    path = run_dir / "history.csv"
    return read_csv(path) if path.exists() else []


def epoch_seconds(run_dir: Path) -> list[float]:
    """The seconds of each finished epoch; right for an interrupted run, too."""
    return [float(row["seconds"]) for row in epochs(run_dir)]


def training_steps(run_dir: Path) -> list[dict[str, str]]:
    """The rows of lms_stats.csv about training; none if there is no such file."""
    path = run_dir / "lms_stats.csv"
    return [row for row in read_csv(path) if row["kind"] == "train"] if path.exists() else []


def written(run_dir: Path) -> dict[str, Any]:
    """The content of config.json; empty if there is no such file."""
    path = run_dir / "config.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def weight_count(run_dir: Path) -> int | None:
    """The size of the weights in best.keras: the trained ones, and a few that are not. None if there is no such file."""
    import h5py

    path = run_dir / "best.keras"
    if not path.exists():
        return None
    sizes: list[int] = []
    with zipfile.ZipFile(path) as parts, h5py.File(io.BytesIO(parts.read("model.weights.h5"))) as weights:
        weights.visititems(lambda _, item: sizes.append(item.size) if isinstance(item, h5py.Dataset) else None)
    return sum(sizes)
