"""What a command leaves, as far as it is the same each time: bits of weights, predictions, tables and cached arrays."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.training import checkpoint
from tests.faults import shim

_OTHER_EACH_TIME = (
    "config.json",
    "lms_plan.json",
    "lms_report.md",
    "lms_stats.csv",
    "ops.json",
    "predictions.json",
)
_PASSED_OVER = ("tensorboard", "plans", "swap", "machine.json", "pace.json", "steps.json")
"""Who cannot write the last three, which hold measured speeds, goes on without them."""
_TEMPORARY = (".part-", ".partial", ".probe.", ".write-test-")

_ADDRESSES = re.compile(rb'"shared_object_id": \d+')  # Keras writes where an object lay in memory

Outcome = dict[str, str]
"""File below the folder -> digest of what it says."""


def outcome_of(folder: Path) -> Outcome:
    """ValueError where a file is not whole."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(name): digest(folder / name) for name in names if _lasting(name)}


def _lasting(name: Path) -> bool:
    """Whether every undisturbed run leaves this file."""
    passed_over = {*name.parts} & {*_PASSED_OVER} or name.name.endswith(".lock") or ".older" in name.name
    return not (passed_over or temporary(str(name)))


def temporary(name: str) -> bool:
    """Whether a file or a folder above it has a name that should not stay."""
    return any(mark in name for mark in _TEMPORARY)


def temporary_names(folder: Path) -> list[str]:
    """What should not stay: half-written files, whatever is in the swap folder."""
    there = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return [name for name in there if temporary(name) or name.startswith("swap/")]


def digest(path: Path) -> str:
    """What a file says that does not change from run to run. ValueError where it is not whole."""
    read = _READERS.get(path.suffix, _bytes)
    try:
        content = "" if path.name in _OTHER_EACH_TIME else read(path)
        return hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    except Exception as error:
        raise ValueError(f"{shim.pattern(path.name)} is not whole: {type(error).__name__}: {error}") from error


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Which files are missing, are too many, or say something else; "" if none."""
    return ", ".join(
        f"{name} {'is missing' if name not in one else 'is new' if name not in other else 'differs'}"
        for name in sorted({*one, *other}) if one.get(name) != other.get(name)
    )  # fmt: skip


def _bytes(path: Path) -> Any:
    return path.read_bytes()


def _checkpoint(path: Path) -> Any:
    arrays, state = checkpoint.load(path)
    return _arrays(arrays), len(state["rows"])


def _network(path: Path) -> Any:
    import h5py

    found: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive:
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as weights:
            weights.visititems(
                lambda name, item: found.update({name: item[()]} if isinstance(item, h5py.Dataset) else {})
            )
        return _ADDRESSES.sub(b"", archive.read("config.json")), _arrays(found)


def _arrays(arrays: Mapping[str, np.ndarray]) -> Any:
    return [(name, array.dtype.str, array.shape, array.tobytes()) for name, array in sorted(arrays.items())]


def _table(path: Path) -> Any:
    text = path.read_text()
    if not text.endswith("\n"):
        raise ValueError("its last line has no end")
    return [
        {name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(io.StringIO(text))
    ]


def _picture(path: Path) -> Any:
    if path.stat().st_size < 100:
        raise ValueError("it is empty")


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npz": _checkpoint, ".keras": _network, ".csv": _table, ".png": _picture, ".pdf": _picture, ".html": _picture
}  # fmt: skip
