"""Training one round: all arms, on one fold, with one seed."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

from lms3d.atomic_files import write_json
from lms3d.experiments.arms import plan
from lms3d.experiments.arms.plan import Arm
from lms3d.experiments.harness import commands
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.harness.ranks import Launcher
from lms3d.experiments.harness.runs import epoch_seconds
from lms3d.tasks.volumes.label_maps import INDEX

LEAST_EPOCHS = 2
"""The first epoch of a process says nothing about the next: it traces and plans."""
NOTE = "equal_time.json"
SLOWER = 0.05
"""By this share the machine may have become slower since the number of epochs was chosen."""

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
    arms: Sequence[Arm], fold: int, seed: int, data: Path, options: argparse.Namespace, output: Path
) -> None:
    """Trains and tests every arm. The first sets the time: the others are tested after it, and after all updates."""
    seconds: float | None = None
    for arm in arms:
        run_dir = directory_of(arm, fold, seed, output)
        print(f"[fold {fold}, seed {seed}] arm {arm.name}: {arm.title}", flush=True)
        if seconds is None:
            _train(arm, options.epochs, fold, seed, data, options, output)
            _test(run_dir, "updates", data, output, options)
            _test(run_dir, "time", data, output, options)
            seconds = options.epochs * usual(epoch_seconds(run_dir))
            _note(run_dir, options.epochs, within=True)
            continue
        if not _done(run_dir, "time"):
            _train(arm, min(LEAST_EPOCHS, options.epochs), fold, seed, data, options, output)
            _train(arm, _chosen(run_dir, seconds, options.epochs), fold, seed, data, options, output)
            trained = epoch_seconds(run_dir)
            _note(run_dir, len(trained), within=spent(trained) <= seconds * (1 + SLOWER))
            _test(run_dir, "time", data, output, options)
        _train(arm, options.epochs, fold, seed, data, options, output)
        _test(run_dir, "updates", data, output, options)


def usual(seconds: Sequence[float]) -> float:
    """The usual seconds of an epoch: the median without the first epoch, in which a process traces and plans."""
    return statistics.median(seconds[1:] or seconds)


def spent(seconds: Sequence[float]) -> float:
    """The seconds of all epochs. The first and the one after `LEAST_EPOCHS`, in which a process traces and plans, count as the
    usual ones."""
    each = usual(seconds)
    return sum(each if number in (0, LEAST_EPOCHS) else taken for number, taken in enumerate(seconds))


def _chosen(run_dir: Path, seconds: float, most: int) -> int:
    """The epochs that fit into the time, judged by the first ones. Chosen once, so that a run that was stopped keeps to them."""
    if (run_dir / NOTE).exists():
        return noted(run_dir)[0]
    epochs = min(most, max(LEAST_EPOCHS, int(seconds / usual(epoch_seconds(run_dir)))))
    _note(run_dir, epochs, within=False)  # nothing is known of it before they are trained
    return epochs


def _note(run_dir: Path, epochs: int, *, within: bool) -> None:
    write_json(run_dir / NOTE, {"epochs": epochs, "within": within})


def noted(run_dir: Path) -> tuple[int, bool]:
    """The epochs after which the run is tested for equal time, and whether they were within it."""
    content = json.loads((run_dir / NOTE).read_text(encoding="utf-8"))
    return int(content["epochs"]), bool(content["within"])


def _train(arm: Arm, epochs: int, fold: int, seed: int, data: Path, options: argparse.Namespace, output: Path) -> None:
    """Trains to `epochs` epochs, from the last checkpoint if there is one. Does nothing if they are done."""
    run_dir = directory_of(arm, fold, seed, output)
    if len(epoch_seconds(run_dir)) >= epochs or _done(run_dir, "updates"):
        return
    command = [*of_module("lms3d.train"), "--data", str(data), "--split", str(plan.split_of(output, fold))]
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
    if _done(run_dir, budget):
        return
    command = [*of_module("lms3d.predict"), str(run_dir), "--data", str(data)]
    command += ["--labels", options.labels] if options.labels else []
    commands.run([*command, "--cases", str(plan.tested(output)), "--output", str(predictions_of(run_dir, budget))])


def _done(run_dir: Path, budget: str) -> bool:
    return (predictions_of(run_dir, budget) / INDEX).exists()
