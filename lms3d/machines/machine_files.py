"""Reads machine files: JSON with a `title` and the numbers of `MachineModel`, each as {"value": 1.0, "source": "..."}. No
TensorFlow here."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from lms3d.common import json_values
from lms3d.errors import InputError
from lms3d.machines.model import MachineModel, Number

HERE = "here"
"""The name of the machine that this process runs on. It is measured, and has no file."""
_FOLDER = Path(__file__).parent
_NUMBERS = {field.name: field.default is MISSING for field in fields(MachineModel) if "Number" in str(field.type)}
"""Name of a number -> whether a file must have it."""
_WHOLE = ("devices", "devices_per_link", "memory_bytes")


def names() -> list[str]:
    """The names of the machines that come with lms3d, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load(name: str) -> MachineModel:
    """The machine of this name, or of a file of the user's (a path that ends in .json). InputError says what is wrong with it."""
    own = name.endswith(".json")
    if not own and name not in names():
        raise InputError(f"--machine {name}: expected {', '.join((HERE, *names()))}, or the path of a .json file")
    path = Path(name).expanduser() if own else _FOLDER / f"{name}.json"
    return _model(path, _content(path))


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json_values.parse(path.read_bytes())
    except OSError as error:
        raise InputError(f"--machine {path}: {error.strerror}; give the path of a .json file") from None
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"is no JSON ({error})") from None
    if not isinstance(content, dict):
        raise _wrong(path, f"holds a {type(content).__name__}; expected an object")
    return content


def _model(path: Path, content: dict[str, Any]) -> MachineModel:
    title = content.get("title")
    if not isinstance(title, str) or not title.strip() or not title.isprintable():
        raise _wrong(path, f"title: found {_shown(title)}; expected a line of text")
    if unknown := sorted(content.keys() - _NUMBERS.keys() - {"title"}):
        raise _wrong(path, f"{_shown(unknown[0])} is no field of a machine; expected {', '.join(_NUMBERS)}")
    if missing := [name for name, required in _NUMBERS.items() if required and name not in content]:
        raise _wrong(path, f"{missing[0]} is missing")
    numbers = {name: _number(path, name, content[name]) for name in _NUMBERS if name in content}
    return MachineModel(name=path.stem, title=title, **numbers)


def _number(path: Path, name: str, entry: Any) -> Number:
    if not isinstance(entry, dict) or entry.keys() != {"value", "source"}:
        raise _wrong(path, f'{name}: found {_shown(entry)}; expected {{"value": a number, "source": where it is from}}')
    value, source = entry["value"], entry["source"]
    least = 1 if name in _WHOLE else 0
    usable = type(value) in (int, float) and math.isfinite(value) and value >= least
    if not usable or (value == 0 and name != "link_latency_seconds") or (name in _WHOLE and value != int(value)):
        kind = "a whole number of 1 or more" if name in _WHOLE else "a number above 0"
        raise _wrong(path, f"{name}: found {_shown(value)}; expected {kind}")
    if not isinstance(source, str) or not source.strip() or not source.isprintable():
        raise _wrong(
            path, f"{name}: found the source {_shown(source)}; expected a line of text that says where it is from"
        )
    return Number(value=float(value), source=source)


def _shown(value: Any) -> str:
    return repr(value)[:60]


def _wrong(path: Path, what: str) -> InputError:
    return InputError(f"--machine {path}: {what}; see docs/machines.md")
