"""How fast each arm trains: measured before the first training, and what "equal time" is counted in.

The machine may be busy while the models train, for days, and not equally for all arms. So the seconds of a step are measured
beforehand, in short trainings for which all arms take turns, on a machine that should be idle. The number of epochs within equal
time follows from them alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lms3d.atomic_files import write_json
from lms3d.data import split
from lms3d.data.split import Split
from lms3d.experiments.arms import plan, runs
from lms3d.experiments.arms.plan import Arm
from lms3d.experiments.harness.page import BUSY
from lms3d.experiments.harness.ranks import BUSY_SECONDS
from lms3d.experiments.harness.runs import training_steps

FILE = "pace.json"
TURNS, EPOCHS, CASES = 2, 3, 4
"""Short trainings of each arm, of so many epochs, with so many cases for each rank. The last epoch counts: the first steps trace,
plan and try plans."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What an arm takes for its updates."""

    step_seconds: float
    """The median step of the faster of its short trainings: other work makes a step slower, never faster."""
    epoch_seconds: float
    """All steps of an epoch with the training cases of the first fold. Validation and start-up are apart."""
    busy: float
    """The share of the cores that other programs used before its short trainings; the larger of their shares."""

    @property
    def disturbed(self) -> bool:
        """Whether other programs may have made the steps slower."""
        return self.busy > BUSY


Paces = dict[str, Pace]
"""Name of an arm -> its pace."""


def measured(arms: Sequence[Arm], data: Path, options: argparse.Namespace, output: Path) -> Paces:
    """The paces of all arms: from FILE in `output` if they are known, measured otherwise."""
    path, folder = output / FILE, output / "pace"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    missing = [arm for arm in arms if arm.name not in known]
    if missing:
        found = split.load(plan.split_of(output, 0))
        few = Split(training=found.training[: CASES * options.ranks], validation=found.validation[: options.ranks])
        turns = [_turn(missing, few, len(found.training), data, options, folder) for _ in range(TURNS)]
        known |= {arm.name: _faster([turn[arm.name] for turn in turns]) for arm in missing}
        write_json(path, known)
        shutil.rmtree(folder)
    return {arm.name: Pace(**known[arm.name]) for arm in arms}


def _turn(
    arms: Sequence[Arm], few: Split, cases: int, data: Path, options: argparse.Namespace, folder: Path
) -> dict[str, dict[str, Any]]:
    """Name of an arm -> the figures of one short training. cases: how many an epoch of the comparison trains with."""
    found = {}
    for arm in arms:
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier call that was stopped, or of the last arm
        folder.mkdir()
        split.save(few, folder / "split.json")
        print(f"[seconds of a step; nothing else should run now] arm {arm.name}: {arm.title}", flush=True)
        busy = psutil.cpu_percent(BUSY_SECONDS) / 100
        runs.train(arm, EPOCHS, 1, folder / "split.json", folder / "run", data, options)
        each = [float(row["seconds"]) for row in training_steps(folder / "run") if row["epoch"] == str(EPOCHS)]
        epoch = statistics.median(each) * len(each) * cases / len(few.training)
        found[arm.name] = {"step_seconds": statistics.median(each), "epoch_seconds": epoch, "busy": busy}
    return found


def _faster(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {**min(turns, key=lambda turn: float(turn["step_seconds"])), "busy": max(turn["busy"] for turn in turns)}


def epochs_within(paces: Paces, arm: Arm, arms: Sequence[Arm], epochs: int) -> int:
    """The epochs that `arm` may train for while the first of the arms trains for `epochs`; 0 if one takes longer than all that."""
    return min(epochs, int(epochs * paces[arms[0].name].epoch_seconds / paces[arm.name].epoch_seconds + 1e-9))
