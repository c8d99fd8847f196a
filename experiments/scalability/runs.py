"""Which runs a comparison needs; each saved as it finishes, none run twice, within a time limit. No TensorFlow here."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from experiments.scalability import measured
from experiments.scalability.launch import Launcher, RunFailed
from experiments.scalability.measured import Measurement
from experiments.scalability.model import STRONG, WEAK
from lms3d import console
from lms3d.errors import InputError
from lms3d.units import format_seconds

BUSY_SECONDS = 0.3
"""For so long it is watched what else runs on the machine."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run on `ranks` ranks."""

    scaling: str
    ranks: int
    program: tuple[str, ...]
    """Without its launcher and without --output."""

    @property
    def name(self) -> str:
        return f"{self.scaling}-{self.ranks}"


def wanted(ranks: Sequence[int], scalings: Sequence[str], training: Sequence[str], weak_steps: int) -> list[Run]:
    """Strong: an epoch is the data, whoever takes part. Weak: an epoch is `weak_steps` steps of every rank.

    Validation is split over the ranks; in weak scaling it is one step of each.
    """
    own = {STRONG: (), WEAK: ("--steps-per-epoch", str(weak_steps), "--validation-steps", "1")}
    program = (sys.executable, "-m", "lms3d.train", *training)
    return [Run(scaling=s, ranks=n, program=(*program, *own[s])) for s in scalings for n in ranks]


class Runner:
    """Measurements of runs, from files or from training. `skipped`, `failed`: what is not there, and why.

    minutes: of the whole comparison; a run that does not fit into what is left is skipped, one that turns out not to is
    ended. again: train anew what is there.
    """

    def __init__(self, folder: Path, launcher: Launcher, *, minutes: float | None = None, again: bool = False) -> None:
        self.folder, self.launcher, self.again = folder, launcher, again
        self.skipped: list[str] = []
        self.failed: list[str] = []
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def measure(self, run: Run) -> Measurement | None:
        """None where there was no time, or training failed."""
        path = self.folder / "parts" / f"{run.name}.json"
        if path.exists() and not self.again:
            found = Measurement.load(path)
        elif not self._in_time(run):
            return None
        else:
            try:
                found = self._train(run)
            except RunFailed as failure:
                self._note(self.skipped if failure.late else self.failed, f"{run.name}: {failure}")
                return None
            except InputError as error:
                self._note(self.failed, f"{run.name}: {error}")
                return None
            found.save(path.parent)
        console.say(f"{run.name}: {format_seconds(found.epoch)} an epoch, {found.images_per_second:.3g} images/s")
        return found

    def found(self) -> list[Measurement]:
        """All that is saved, those of earlier calls too."""
        every = [Measurement.load(path) for path in (self.folder / "parts").glob("*.json")]
        return sorted(every, key=lambda one: ((STRONG, WEAK).index(one.scaling), one.ranks))

    def _train(self, run: Run) -> Measurement:
        directory = self.folder / "runs" / run.name
        shutil.rmtree(directory, ignore_errors=True)  # one that was stopped: its times have a second warm-up in them
        busy = psutil.cpu_percent(BUSY_SECONDS) / 100
        started = time.monotonic()
        program = [*run.program, "--output", str(directory)]
        self.launcher.run(
            run.ranks, program, self.folder / "logs" / f"{run.name}.txt", patience_seconds=self._seconds_left()
        )
        return measured.read(
            directory, scaling=run.scaling, ranks=run.ranks, wall_seconds=time.monotonic() - started, busy=busy
        )

    def _in_time(self, run: Run) -> bool:
        left, known = self._seconds_left(), [one.wall_seconds for one in self.found() if one.scaling == run.scaling]
        expected = max(known, default=0.0)
        if left is None or (left > 0 and expected <= left):
            return True
        need = f"needs about {format_seconds(expected)}, " if expected else ""
        self._note(self.skipped, f"{run.name} ({need}{format_seconds(left)} left)")
        return False

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _note(self, where: list[str], what: str) -> None:
        where.append(what)
        console.say(f"{'failed' if where is self.failed else 'skipped'}: {what}")
