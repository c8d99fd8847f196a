"""Measurements on disk, one JSON file each: none is made twice, and none begins when the time is over. No TensorFlow here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from experiments.scalability.launch import BUSY_SECONDS, RunFailed
from lms3d import console
from lms3d.errors import InputError
from lms3d.files import write_json
from lms3d.units import format_seconds

Part = dict[str, Any]


class SomeFailed(RuntimeError):
    """Measurements failed; the report has the others."""

    exit_code = 1


class Parts:
    """Parts of a comparison, from files or measured. `skipped`, `failed`: what is not there, and why.

    minutes: of the whole comparison; a part that does not fit into what is left is skipped, one that turns out not to is
    ended. again: measure anew what is there.
    """

    def __init__(self, folder: Path, *, minutes: float | None = None, again: bool = False) -> None:
        self.folder, self.again = folder / "parts", again
        self.skipped: list[str] = []
        self.failed: list[str] = []
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def measure(self, name: str, make: Callable[[float | None], Part]) -> Part | None:
        """The part called "kind-ranks"; `make` is given the seconds that are left. None where it failed or had no time.

        The part is kept with `wall_seconds` that it took, and `busy`: the share of the cores that others used just before.
        """
        path = self.folder / f"{name}.json"
        if path.exists() and not self.again:
            console.say(f"{name}: measured before")
            return self.load(path)
        left = self._seconds_left()
        expected = max((part["wall_seconds"] for part in self.found(name.split("-")[0])), default=0.0)
        if left is not None and (left <= 0 or expected > left):
            need = f"needs about {format_seconds(expected)}, " if expected else ""
            self._note(self.skipped, f"{name} ({need}{format_seconds(left)} left)")
            return None
        busy, started = psutil.cpu_percent(BUSY_SECONDS) / 100, time.monotonic()
        try:
            part = make(left)
        except RunFailed as failure:
            self._note(self.skipped if failure.late else self.failed, f"{name}: {failure}")
            return None
        part = {**part, "name": name, "busy": busy, "wall_seconds": time.monotonic() - started}
        write_json(path, part)
        return part

    def found(self, kind: str) -> list[Part]:
        """All parts of a kind, by ranks, those of earlier calls too."""
        return sorted(map(self.load, self.folder.glob(f"{kind}-*.json")), key=lambda part: part["ranks"])

    def load(self, path: Path) -> Part:
        """InputError for a file that no measurement wrote."""
        try:
            part: Part = json.loads(path.read_text())
            float(part["wall_seconds"])
            int(part["ranks"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: {error!r}; expected a part of this program; delete it and run again") from None
        return part

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _note(self, where: list[str], what: str) -> None:
        where.append(what)
        console.say(f"{'failed' if where is self.failed else 'skipped'}: {what}")


def remember(settings: Mapping[str, Any], output: Path) -> None:
    """Keep the settings with the output; InputError where they differ from those that it was begun with."""
    path = output / "settings.json"
    wanted = json.loads(json.dumps(dict(settings)))  # as it would be read
    before = json.loads(path.read_text()) if path.exists() else wanted
    for name, value in wanted.items():
        if before.get(name) != value:
            raise InputError(
                f"--{name.replace('_', '-')}: found {value}, but {output} was begun with {before.get(name)}; give the same "
                "options, or another --output"
            )
    write_json(path, wanted)
