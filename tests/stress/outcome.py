"""The outcome of a command, as far as it is the same each time: bits of weights, predictions, tables and cached arrays."""

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
from tests.stress import shim

_OTHER_EACH_TIME = ("config.json", "lms_plan.json", "lms_report.md", "lms_stats.csv", "ops.json", "predictions.json")
_PASSED_OVER = ("tensorboard", "plans", "swap", "machine.json", "pace.json", "steps.json")
"""A command that cannot write the last three, which hold measured speeds, goes on without them."""
_TEMPORARY = (".part-", ".partial", ".probe.", ".write-test-")

_ADDRESSES = re.compile(rb'"shared_object_id": \d+')  # Keras writes the address of an object

Outcome = dict[str, str]
"""File below the folder -> digest of its content."""


def outcome_of(folder: Path) -> Outcome:
    """The outcome of a command in its folder. ValueError if a file is not whole."""
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
    """The names that should not stay: half-written files, and all that is in the swap folder."""
    there = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return [name for name in there if temporary(name) or name.startswith("swap/")]


def digest(path: Path) -> str:
    """A digest of the content that does not change from run to run. ValueError if the file is not whole."""
    try:
        content = "" if path.name in _OTHER_EACH_TIME else _READERS.get(path.suffix, Path.read_bytes)(path)
        return hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    except Exception as error:
        raise ValueError(f"{shim.pattern(path.name)} is not whole: {type(error).__name__}: {error}") from error


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The files that are missing, are new, or say something else; "" if there are none."""
    return ", ".join(
        f"{name} {'is missing' if name not in one else 'is new' if name not in other else 'differs'}"
        for name in sorted({*one, *other}) if one.get(name) != other.get(name)
    )  # fmt: skip


def _checkpoint(path: Path) -> Any:
    arrays, state = checkpoint.load(path)
    return _arrays(arrays), len(state["rows"])


def _network(path: Path) -> Any:
    import h5py

    found: dict[str, np.ndarray] = {}

    def keep(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with zipfile.ZipFile(path) as archive:
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as weights:
            weights.visititems(keep)
        return _ADDRESSES.sub(b"", archive.read("config.json")), _arrays(found)


def _arrays(arrays: Mapping[str, np.ndarray]) -> Any:
    return [(name, array.dtype.str, array.shape, array.tobytes()) for name, array in sorted(arrays.items())]


def _table(path: Path) -> Any:
    text = path.read_text()
    if not text.endswith("\n"):
        raise ValueError("its last line has no end")
    return [row | {"seconds": ""} for row in csv.DictReader(io.StringIO(text))]


def _picture(path: Path) -> Any:
    if path.stat().st_size < 100:
        raise ValueError("it is empty")


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npz": _checkpoint, ".keras": _network, ".csv": _table, ".png": _picture, ".pdf": _picture, ".html": _picture
}  # fmt: skip
