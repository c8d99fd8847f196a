"""`python -m experiments.compare_resolutions`: does a higher resolution segment better? The LMS case study's method.

1. One training/validation split serves every model: that of the best of `--split-models` models of the low resolution, each with a
   split of its own, as the case study chose it; with one, a split drawn by a seed before anything is trained.
2. `lms3d.train` trains N models per resolution, which differ in their seed: initial weights, order and symmetries of the samples.
   An interrupted model is resumed.
3. Predictions of the low resolution are resized to the high one by the function that resized the data, and both are
   scored against the truth at the high resolution; and, beyond the case study, against the original truth.
4. For each validation case and region, Dice is averaged over the models of a resolution; box plots compare them.

Intensities and resizing are the case study's, too (`--normalisation global --no-anti-alias`). Every score stands beside the
ceiling of its resolution: what the truth itself scores there and back.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d import cli, errors
from lms3d.atomic_files import write_json, write_text
from lms3d.data import pseudonyms
from lms3d.experiments.harness import baseline, command, commands, page, runs, store
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.harness.table import markdown
from lms3d.tasks.brats.intensity_baseline import TITLE

if TYPE_CHECKING:
    import pandas as pd

_EPILOG = """\
examples:
  python -m experiments.compare_resolutions --low 48 --high 64 --models 2 --epochs 30
  python -m experiments.compare_resolutions --low 144 --high 192 --models 4 --memory-limit 16GiB --data ~/BraTS2020

writes into --output: runs/<resolution>-seed<k>/ (every run), splits/ (runs that choose the split), scores.csv (mean over
models), scores_per_model.csv, report.md, and the other tables, figures and report.html of lms3d.evaluate"""


AS_IN_THE_CASE_STUDY = ("--normalisation", "global", "--no-anti-alias")


@dataclass(frozen=True, kw_only=True)
class ModelRun:
    """One model to train."""

    resolution: int
    seed: int
    directory: Path
    train: tuple[str, ...]
    """The training command; it goes on from a checkpoint if there is one."""

    @property
    def group(self) -> str:
        return f"{self.resolution}³"

    @property
    def finished(self) -> Path:
        """A file that exists once this run has been trained to its end."""
        return self.directory / "finished.json"


def _compare(options: argparse.Namespace, typed: str) -> None:
    pseudonyms.start(options.anonymous)
    if options.low >= options.high:
        raise errors.InputError(f"--low {options.low} --high {options.high}: expected the low one to be smaller")
    output = command.folder(options, f"compare-{options.low}-{options.high}")
    store.remember(command.settings(options, "anonymous", "models"), output)
    data = commands.data_folder(options.data)
    _choose_split(data, options, output)
    planned = plan(options, data, output)
    for number, run in enumerate(planned, start=1):
        print(f"[{number}/{len(planned)}] {run.directory.name}", flush=True)
        _train(run)
        _predict(run)
    found = evaluated(planned, output)
    alone = baseline.of_split(data, options.labels, output / "split.json", output)
    means = {("native", row.region): f"{row.mean:.3f}" for row in baseline.rows(alone)}
    print(_report(found, options, _conditions(planned, typed), output, means))
    print(f"written: {output}")


def plan(options: argparse.Namespace, data: Path, output: Path) -> list[ModelRun]:
    """The runs, all of one seed before the next, so that an early stop leaves a comparison of fewer models."""
    planned = []
    for seed in range(1, options.models + 1):
        for resolution in (options.low, options.high):
            directory = output / "runs" / f"{resolution}-seed{seed}"
            planned.append(_run_of(options, data, resolution, seed, directory, output / "split.json"))
    return planned


def _run_of(
    options: argparse.Namespace, data: Path, resolution: int, seed: int, directory: Path, split: Path | None
) -> ModelRun:
    """A run, with its command. split: None draws a split by the run's own seed."""
    lms = options.lms and resolution == options.high
    command = [*of_module("lms3d.train"), "--data", str(data), "--resolution", str(resolution)]
    command += ["--seed", str(seed), "--model", options.model, *AS_IN_THE_CASE_STUDY]
    command += ["--epochs", str(options.epochs), "--lms" if lms else "--no-lms", "--output", str(directory), "--resume"]
    command += ["--split", str(split)] if split else []
    command += ["--labels", options.labels] if options.labels else []
    command += ["--memory-limit", str(options.memory_limit)] if options.memory_limit else []
    return ModelRun(resolution=resolution, seed=seed, directory=directory, train=tuple(command))


def _choose_split(data: Path, options: argparse.Namespace, output: Path) -> None:
    """Writes split.json, once: that of the model with the lowest validation loss, or one drawn by --split-seed."""
    if (output / "split.json").exists():
        return
    if options.split_models == 1:
        _write_split(data, options, output / "split.json")
        return
    seeds = range(options.split_seed, options.split_seed + options.split_models)
    tried = [_run_of(options, data, options.low, seed, output / "splits" / f"seed{seed}", None) for seed in seeds]
    for number, run in enumerate(tried, start=1):
        print(f"[split {number}/{len(tried)}] {run.directory.name}", flush=True)
        _train(run)
    best = min(tried, key=lambda run: min(float(row["val_loss"]) for row in runs.epochs(run.directory)))
    print(f"split of {best.directory.name}: the lowest validation loss of {len(tried)}", flush=True)
    write_text(output / "split.json", (best.directory / "split.json").read_text(encoding="utf-8"))


def evaluated(some: Sequence[ModelRun], output: Path) -> pd.DataFrame:
    """Scores all runs by the command, each resolution as a group. Returns the means over the models of each, which are written as
    scores.csv, beside every run's own, scores_per_model.csv."""
    import pandas as pd

    from lms3d.scoring import scores, tables

    grouped = sorted(some, key=lambda run: run.resolution)
    command = of_module("lms3d.evaluate")
    for group, members in itertools.groupby(grouped, key=lambda run: run.group):
        command += ["--group", f"{group}={','.join(str(run.directory) for run in members)}"]
    commands.run([*command, "--output", str(output)])
    found = pd.read_csv((output / "scores.csv").rename(output / "scores_per_model.csv"), dtype={"case": str})
    labels = dict.fromkeys(found["predictions"])  # in the order of the groups
    means = scores.average_over_models(found, dict(zip(labels, (run.group for run in grouped), strict=True)))
    tables.write_csv(means, output / "scores.csv")
    return means


def differences(found: pd.DataFrame, low: str, high: str) -> list[tuple[str, str, float, float, int, int]]:
    """For each space and region: the means of the headline column for low and high, in how many cases high is better, all cases."""
    from lms3d.scoring.columns import COLUMNS, HEADLINE

    sign, rows = (1 if COLUMNS[HEADLINE].larger_is_better else -1), []
    for (space, region), group in found.groupby(["space", "region"], sort=False):
        values = group.pivot(index="case", columns="predictions", values=HEADLINE)
        better = int((sign * (values[high] - values[low]) > 0).sum())
        rows.append((space, region, float(values[low].mean()), float(values[high].mean()), better, len(values)))
    return rows


def _report(
    found: pd.DataFrame, options: argparse.Namespace, conditions: list[str], output: Path, alone: Mapping[tuple[str, str], str]
) -> str:  # fmt: skip
    """Writes report.md and returns its text. alone: (space, region) -> Dice of the baseline."""
    low, high = f"{options.low}³", f"{options.high}³"
    head = ["space", "region", low, high, "difference", f"{high} better", TITLE]
    rows = [
        [
            *(space, region, f"{a:.3f}", f"{b:.3f}", f"{b - a:+.3f}", f"{better} of {cases} cases"),
            alone.get((space, region), ""),
        ]
        for space, region, a, b, better, cases in differences(found, low, high)
    ]
    models = f"{options.models} model{'s' if options.models > 1 else ''}"
    summary = (output / "summary.md").read_text(encoding="utf-8").rstrip("\n")
    (output / "summary.md").unlink()  # report.md has the same table
    return page.write(
        output / "report.md", [f"# {low} and {high}, {models} each", markdown(head, rows), summary, *conditions]
    )


def _conditions(some: Sequence[ModelRun], typed: str) -> list[str]:
    """How the numbers were made: the machine, the seconds of each run, and the command."""
    seconds = [[run.directory.name, f"{json.loads(run.finished.read_text())['seconds']:.0f}"] for run in some]
    notes = (
        f"Dice per case: mean over the models of a resolution. {page.machine()}\n"
        "Cube space: the truth at the high resolution; low predictions are resized to it, nearest neighbour."
    )
    return [notes, markdown(["run", "training seconds"], seconds), f"Made by `{typed}`."]


def _train(run: ModelRun) -> None:
    """Train `run` to its end, from its last checkpoint if it has one. Does nothing for a finished run."""
    if run.finished.exists():
        return
    commands.run(run.train)
    write_json(run.finished, {"seconds": sum(runs.epoch_seconds(run.directory))})


def _predict(run: ModelRun) -> None:
    if not (run.directory / "predictions" / "predictions.json").exists():
        commands.run([*of_module("lms3d.predict"), str(run.directory)])


def _write_split(data: Path, options: argparse.Namespace, path: Path) -> None:
    from lms3d.data import split
    from lms3d.data.brats import layouts

    if not path.exists():
        found = layouts.find_cases(data, labels=options.labels, require_complete=False)
        split.save(split.make(found.complete, options.split_seed, patients=found.patients), path)


def _options(parser: cli.Parser) -> None:
    add, count = parser.add_argument, cli.whole(1)
    command.add_resolution(parser, 144, option="--low", what="the lower resolution")
    command.add_resolution(parser, 192, option="--high", what="the higher resolution")
    add("--models", type=count, metavar="N", default=4, help="models per resolution (default: 4)")
    add("--epochs", type=count, metavar="N", default=40, help="epochs of each model (default: 40)")
    command.add_model(parser)
    command.add_volumes(parser)
    drawn = "draws the split, or the first of several (default: 0)"
    add("--split-seed", type=cli.whole(0), metavar="N", default=0, help=drawn)
    splits = (
        "choose the split of the best of N low models, each with its own; the case study took 6 (default: 1, drawn)"
    )
    add("--split-models", type=count, metavar="N", default=1, help=splits)
    lms = "train the high resolution with LMS, as the case study did (default: on); the low one never uses it"
    add("--lms", action=argparse.BooleanOptionalAction, default=True, help=lms)
    command.add_size(parser, "--memory-limit", None, "hard memory limit for both resolutions, such as 16GiB")
    command.add_output(parser, None, "compare-LOW-HIGH")
    command.add_anonymous(parser)


main, _parser = command.of(
    "compare_resolutions", _compare, _options, __doc__, _EPILOG, exits={3: "a model does not fit into memory"}, resumed=True
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
