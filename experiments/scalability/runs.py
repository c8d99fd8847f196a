"""Which runs a comparison needs, and what they measured. No TensorFlow here."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lms3d import console
from lms3d.errors import InputError
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.harness.ranks import Launcher, RunFailed
from lms3d.experiments.harness.store import Record, Records
from lms3d.experiments.scalability import measured
from lms3d.experiments.scalability.measured import Measurement
from lms3d.experiments.scalability.model import STRONG, WEAK
from lms3d.units import format_seconds


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """One training run on `ranks` ranks."""

    scaling: str
    ranks: int
    program: tuple[str, ...]
    """Without its launcher and without --output."""

    @property
    def name(self) -> str:
        return f"{self.scaling}-{self.ranks}"


def wanted(ranks: Sequence[int], scalings: Sequence[str], training: Sequence[str], weak_steps: int) -> list[RankRun]:
    """The runs of a comparison. Strong: an epoch is one pass over the data, on any number of ranks. Weak: it is `weak_steps` steps
    of each rank.

    Validation is split over the ranks; in weak scaling it is one step of each.
    """
    own = {STRONG: (), WEAK: ("--steps-per-epoch", str(weak_steps), "--validation-steps", "1")}
    program = (*of_module("lms3d.train"), *training)
    return [RankRun(scaling=s, ranks=n, program=(*program, *own[s])) for s in scalings for n in ranks]


class Runner(Records):
    """Measurements of runs, from files or from training."""

    def __init__(self, folder: Path, launcher: Launcher, *, minutes: float | None = None, again: bool = False) -> None:
        super().__init__(folder, minutes=minutes, again=again)
        self.launcher = launcher

    def train(self, run: RankRun) -> Measurement | None:
        """What the run measured; None if there was no time, or training failed."""
        part = self.measure(run.name, lambda seconds: self._train(run, seconds))
        if part is None:
            return None
        one = Measurement.of(part)
        console.say(f"{run.name}: {format_seconds(one.epoch)} an epoch, {one.images_per_second:.3g} images/s")
        return one

    def measurements(self) -> list[Measurement]:
        """All that is saved, those of earlier calls too."""
        return [Measurement.of(part) for scaling in (STRONG, WEAK) for part in self.found(scaling)]

    def _train(self, run: RankRun, patience_seconds: float | None) -> Record:
        directory = self.folder / "runs" / run.name
        shutil.rmtree(directory, ignore_errors=True)  # of a run that was stopped: its times hold a second warm-up
        program = [*run.program, "--output", str(directory)]
        self.launcher.run(
            run.ranks, program, self.folder / "logs" / f"{run.name}.txt", patience_seconds=patience_seconds
        )
        try:
            return asdict(measured.read(directory, scaling=run.scaling, ranks=run.ranks))
        except InputError as error:
            raise RunFailed(str(error)) from None
