"""Measurements, as JSON files in FOLDER/parts: nothing is measured twice, and nothing begins once the time is over. No
TensorFlow here."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from lms3d import console
from lms3d.atomic_files import write_json
from lms3d.errors import InputError
from lms3d.experiments import ROOT
from lms3d.experiments.harness.ranks import BUSY_SECONDS, RunFailed
from lms3d.units import format_seconds

Record = dict[str, Any]


class StudyStore:
    """The folder of a study. skipped, failed: missing measurements, and why.

    minutes: the time limit of this call; None is without limit. again: measure everything again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        minutes: float | None = None,
        again: bool = False,
        say: Callable[[str], None] = console.say,
    ) -> None:
        self.folder, self.again, self._say = folder, again, say
        self.parts = folder / "parts"
        self.skipped: list[str] = []
        self.failed: list[str] = []
        self.deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def seconds_left(self) -> float:
        """The seconds until the time limit, at least 0; infinite without a limit."""
        return max(0.0, self.deadline - time.monotonic())

    def skip(self, what: str) -> None:
        """Leaves something out, and remembers it for the report."""
        self.skipped.append(what)
        self._say(f"skipped: {what}")

    def fail(self, what: str) -> None:
        """Remembers for the report that something failed."""
        self.failed.append(what)
        self._say(f"failed: {what}")


class Records(StudyStore):
    """Measurements called "KIND-RANKS". A part that does not fit into the time that is left is skipped; one that turns out not to
    is ended."""

    def measure(self, name: str, make: Callable[[float | None], Record]) -> Record | None:
        """The record of this name; None if it failed or there was no time. make: seconds left -> the measurement.

        The record is kept with the `wall_seconds` that it took, and `busy`: the share of the cores that others used just before.
        """
        path = self.parts / f"{name}.json"
        if path.exists() and not self.again:
            self._say(f"{name}: measured before")
            return load(path, _check)
        left = self.seconds_left()
        expected = max((one["wall_seconds"] for one in self.found(name.split("-")[0])), default=0.0)
        if left <= 0 or expected > left:
            need = f"needs about {format_seconds(expected)}, " if expected else ""
            self.skip(f"{name} ({need}{format_seconds(left)} left)")
            return None
        busy, started = psutil.cpu_percent(BUSY_SECONDS) / 100, time.monotonic()
        try:
            made = make(None if math.isinf(left) else left)
        except RunFailed as failure:
            (self.skip if failure.late else self.fail)(f"{name}: {failure}")
            return None
        record = {**made, "name": name, "busy": busy, "wall_seconds": time.monotonic() - started}
        write_json(path, record)
        self._say(f"{name}: measured in {format_seconds(record['wall_seconds'])}")
        return record

    def found(self, kind: str) -> list[Record]:
        """All records of a kind by the number of ranks, also from earlier calls."""
        return sorted((load(path, _check) for path in self.parts.glob(f"{kind}-*.json")), key=lambda one: one["ranks"])


class UpToDate(StudyStore):
    """Records that follow from the code alone: each is made again if one of the `sources` has changed."""

    def __init__(self, folder: Path, *sources: str, again: bool = False) -> None:
        super().__init__(folder, again=again)
        self.code = digest(*sources)

    def get(self, name: str, make: Callable[[], Record]) -> Record:
        """The record of this name, from its file or made."""
        path = self.parts / f"{name}.json"
        if path.exists() and not self.again:
            known = load(path, lambda one: (dict(one["part"]), str(one["code"])))
            if known["code"] == self.code:
                return dict(known["part"])
        self._say(f"{name} ...")
        made = make()
        write_json(path, {"code": self.code, "part": made})
        return made


def load(path: Path, check: Callable[[Record], object]) -> Record:
    """The record in a file. InputError for a file that no measurement wrote: `check` raises KeyError, TypeError or ValueError."""
    try:
        record: Record = json.loads(path.read_text())
        check(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {error!r}; expected a part of this program; delete it and run again") from None
    return record


def _check(record: Record) -> None:
    float(record["wall_seconds"])
    int(record["ranks"])


def remember(settings: Mapping[str, Any], output: Path) -> None:
    """Keeps the settings with the output. InputError if it was begun with other settings."""
    path = output / "settings.json"
    wanted = json.loads(json.dumps(dict(settings), default=str))  # as it would be read; a path is its text
    before = json.loads(path.read_text()) if path.exists() else wanted
    for name, value in wanted.items():
        if before.get(name) != value:
            raise InputError(
                f"--{name.replace('_', '-')}: found {value}, but {output} was begun with {before.get(name)}; give the same "
                "options, or another --output"
            )
    write_json(path, wanted)


def digest(*sources: str) -> str:
    """A fingerprint of all files that match the patterns, from the top of the project."""
    made = hashlib.sha256()
    for pattern in sources:
        for path in sorted(ROOT.glob(pattern)):
            made.update(path.read_bytes())
    return made.hexdigest()[:12]


@functools.cache
def code_digest() -> str:
    """A fingerprint of all source files whose change may change how a step is trained."""
    return digest("lms3d/**/*.py", "lms3d/models/*.py", "lms3d/experiments/harness/*.py")
