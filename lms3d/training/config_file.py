"""config.json of a run: reading it, and going on with the options in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lms3d.common import json_values
from lms3d.config import StagedConfig, TrainConfig, flag
from lms3d.errors import InputError

T = TypeVar("T", bound=TrainConfig)
NAME = "config.json"

_FORMS = {
    "versions": dict,
    "command": list,
    "circumstances": dict,
    "data": dict,
    "normalisation": dict,
    "labels": dict,
    "earlier_sessions": list,
}

FREE_ON_RESUME = frozenset(
    {"data", "epochs", "lms", "memory_limit", "cudnn_workspace", "swap_tier", "swap_dir", "swapout_threshold", "swapin_ahead",
     "swapin_groupby", "sync_mode", "serialization", "serialization_by_size", "gradient_compression", "tracker",
     *StagedConfig.starts}
)  # fmt: skip
"""Options that may differ when a run is resumed: how long, where and how it computes. `require_same_start` checks what it started
from."""


def resumed(stored: T, given: dict[str, Any], run_dir: Path) -> T:
    """The stored options with those given now; InputError if they contradict each other."""
    stored.require_own(given, stored.task)
    for name, value in given.items():
        before = getattr(stored, name)
        if name not in FREE_ON_RESUME and value != before:
            raise InputError(
                f"{flag(name)} {value} differs from the run in {run_dir}, which has {before}; "
                f"leave {flag(name)} out to resume it, or start another run with another --output"
            )
    return replace(stored, **given)


def require_same_start(stored: TrainConfig, given: dict[str, Any], run_dir: Path) -> None:
    """InputError if a run with a checkpoint is asked to start from other weights, which it would not read."""
    if isinstance(stored, StagedConfig) and stored.stages:
        return
    for name in stored.starts:
        if name in given and given[name] != getattr(stored, name):
            raise InputError(
                f"{flag(name)} {given[name]}: the run in {run_dir} goes on from its own checkpoint; leave {flag(name)} out, or "
                "start another run with another --output"
            )


def load(run_dir: Path, revived: Callable[[dict[str, Any]], T]) -> tuple[T, dict[str, Any]]:
    """The options of a run, and the whole content of its config.json.

    revived: makes options of JSON values: `from_json` of the task's class, or `lms3d.tasks.stored` if the task is unknown.
    """
    content = read(run_dir)
    with _damage_explained(run_dir):
        return revived(content["options"]), content


def read(run_dir: Path) -> dict[str, Any]:
    """The content of config.json. InputError if there is none, or it is damaged."""
    with _damage_explained(run_dir):
        content: dict[str, Any] = json_values.parse((run_dir / NAME).read_text(encoding="utf-8"))
        _require_forms(content)
        return content


@contextmanager
def _damage_explained(run_dir: Path) -> Iterator[None]:
    """Turns what a damaged or missing config.json raises in the block into an InputError."""
    path = run_dir / NAME
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{run_dir} is not a run folder: it has no config.json") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give the folder of a run") from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it or start another run") from None


def fingerprint(content: Mapping[str, Any], run_dir: Path) -> str:
    """The fingerprint of the data on which a run was trained, from its config.json."""
    found = content.get("data", {}).get("fingerprint")
    if not isinstance(found, str):
        raise InputError(
            f"{run_dir / NAME} is damaged (found no fingerprint of the data); restore it or start another run"
        )
    return found


def _require_forms(content: dict[str, Any]) -> None:
    """ValueError if an entry beside the options has another form than all versions have written."""
    for name, kind in _FORMS.items():
        if name in content and not isinstance(content[name], kind):
            raise ValueError(
                f"found {name} {str(content[name])[:60]!r}, expected {'an object' if kind is dict else 'a list'}"
            )
