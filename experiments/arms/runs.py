"""Training one round: all arms, on one fold, with one seed."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from lms3d.experiments.arms import plan
from lms3d.experiments.arms.plan import Arm
from lms3d.experiments.harness import commands
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.harness.ranks import Launcher
from lms3d.experiments.harness.runs import epochs as finished_epochs
from lms3d.tasks.volumes.label_maps import INDEX

OWNED = (
    "--data", "--split", "--patch", "--epochs", "--patience", "--output", "--resume", "--seed", "--stages", "--start-from",
    "--folds", "--schedule", "--resolution", "--box", "--precision", "--targets", "--model", "--memory-limit", "--labels",
    "--task", "--dry-run", "--weights",
)  # fmt: skip
"""Options of training that the comparison or an arm of it sets. A cosine knows how long a run is, so that none could
be the beginning of another."""


def directory_of(arm: Arm, fold: int, seed: int, output: Path) -> Path:
    """The folder of a run."""
    return output / "runs" / f"{arm.name}-fold{fold}-seed{seed}"


def predictions_of(run_dir: Path, budget: str) -> Path:
    """The folder with the predictions of the test set by the best weights within a budget."""
    return run_dir / f"test-{budget}"


def train_round(
    arms: Sequence[Arm],
    within: Mapping[str, int],
    fold: int,
    seed: int,
    data: Path,
    options: argparse.Namespace,
    output: Path,
) -> None:
    """Trains and tests every arm, for equal time and for equal updates. within: the epochs of each arm within equal time; an arm
    is trained for at least one."""
    for arm in arms:
        run_dir = directory_of(arm, fold, seed, output)
        print(f"[fold {fold}, seed {seed}] arm {arm.name}: {arm.title}", flush=True)
        for budget, epochs in (("time", max(1, within[arm.name])), ("updates", options.epochs)):
            if _done(run_dir, budget):
                continue
            train(arm, epochs, seed, plan.split_of(output, fold), run_dir, data, options)
            _test(run_dir, budget, data, output, options)


def train(
    arm: Arm, epochs: int, seed: int, cases: Path, run_dir: Path, data: Path, options: argparse.Namespace
) -> None:
    """Trains to `epochs` epochs, from the last checkpoint if there is one. Does nothing if they are done. cases: the file with the
    split."""
    if len(finished_epochs(run_dir)) >= epochs:
        return
    command = [*of_module("lms3d.train"), "--data", str(data), "--split", str(cases)]
    command += [*arm.options, "--targets", options.targets, "--model", options.model, "--seed", str(seed)]
    command += ["--epochs", str(epochs), "--patience", str(options.epochs), "--output", str(run_dir), "--resume"]
    command += ["--labels", options.labels] if options.labels else []
    command += ["--start-from", options.start_from] if options.start_from else []
    command += ["--memory-limit", str(options.memory_limit)] if options.memory_limit else []
    commands.run(launched([*command, *shlex.split(options.train_options)], options))


def launched(command: Sequence[str], options: argparse.Namespace) -> list[str]:
    """A training's command, under the launcher if several ranks train. InputError if the launcher is missing."""
    return [*command] if options.ranks == 1 else Launcher(template=options.launcher).command(options.ranks, command)


def _test(run_dir: Path, budget: str, data: Path, output: Path, options: argparse.Namespace) -> None:
    command = [*of_module("lms3d.predict"), str(run_dir), "--data", str(data)]
    command += ["--labels", options.labels] if options.labels else []
    commands.run([*command, "--cases", str(plan.tested(output)), "--output", str(predictions_of(run_dir, budget))])


def _done(run_dir: Path, budget: str) -> bool:
    return (predictions_of(run_dir, budget) / INDEX).exists()
