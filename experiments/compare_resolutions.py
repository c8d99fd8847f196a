"""`python -m experiments.compare_resolutions`: does a higher resolution segment better? The LMS case study's method.

1. One training/validation split serves every model.
2. N models per resolution, which differ in their seed: initial weights, order and symmetries of the samples.
3. Predictions of the low resolution are resized to the high one by the function that resized the data, and both are
   scored against the truth at the high resolution; and, beyond the case study, against the original truth.
4. For each validation case and region, Dice is averaged over the models of a resolution; box plots compare them.

The case study took the best of six splits; here the split is drawn by a seed, before anything is trained.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.feeding.parts import remember
from lms3d import cli, errors
from lms3d.files import writable_folder, write_json
from lms3d.units import parse_size

if TYPE_CHECKING:
    import pandas as pd

_DESCRIPTION = """\
Compare two resolutions as the LMS case study did: train N models at each, all on the same split, score the predictions
of both against the truth at the high resolution and against the original truth, and draw box plots of Dice per case.

Every model is trained by `python -m lms3d.train`. Started again with the same --output it goes on where it was stopped:
finished models are kept, an interrupted one is resumed."""

_EPILOG = """\
examples:
  python -m experiments.compare_resolutions --low 48 --high 64 --models 2 --epochs 30
  python -m experiments.compare_resolutions --low 144 --high 192 --models 4 --memory-limit 16GiB --data ~/BraTS2020

writes into --output: runs/<resolution>-seed<k>/ (every run), scores.csv (mean over models), scores_per_model.csv,
summary.csv, report.md, dice_native.png/.pdf, dice_cube.png/.pdf
exit codes: 0 done, 2 wrong option or input, 3 a model does not fit into memory, 130 interrupted (run again to go on)"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One model to train."""

    resolution: int
    seed: int
    directory: Path
    train: tuple[str, ...]
    """Its training command; it goes on from a checkpoint where there is one."""

    @property
    def group(self) -> str:
        return f"{self.resolution}³"

    @property
    def finished(self) -> Path:
        """A file that exists once this run has been trained to its end."""
        return self.directory / "finished.json"


class CommandFailed(RuntimeError):
    """A command ended with an error, which it has told on stderr itself."""

    def __init__(self, command: Sequence[str], exit_code: int) -> None:
        super().__init__(
            f"exit code {exit_code} of `{shlex.join(command)}`; see its message above; what is finished is kept, run "
            "the same command again to go on"
        )
        self.exit_code = exit_code if exit_code in (2, 3, 130) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, predict, score, report. Returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "experiments.compare_resolutions", *words])
    return errors.run(lambda: _compare(_parser().parse_args(words), command))


def _compare(options: argparse.Namespace, command: str) -> None:
    if options.low >= options.high:
        raise errors.InputError(f"--low {options.low} --high {options.high}: expected the low one to be smaller")
    output = Path(options.output or f"compare-{options.low}-{options.high}").expanduser()
    settings = {name: value for name, value in sorted(vars(options).items()) if name not in ("output", "models")}
    remember(settings, writable_folder(output, "--output"))
    data = _data(options)
    _write_split(data, options, output / "split.json")
    runs = plan(options, data, output)
    for number, run in enumerate(runs, start=1):
        print(f"[{number}/{len(runs)}] {run.directory.name}", flush=True)
        _train(run)
        _predict(run)
    found = average(runs, output)
    conditions = _conditions(runs, command)
    print(_report(found, options, conditions, output))
    print(f"written: {output}")


def plan(options: argparse.Namespace, data: Path, output: Path) -> list[Run]:
    """The runs, all of one seed before the next, so that an early stop leaves a comparison of fewer models."""
    runs = []
    for seed in range(1, options.models + 1):
        for resolution in (options.low, options.high):
            directory = output / "runs" / f"{resolution}-seed{seed}"
            lms = options.lms and resolution == options.high
            command = [sys.executable, "-m", "lms3d.train", "--data", str(data), "--split", str(output / "split.json")]
            command += ["--resolution", str(resolution), "--seed", str(seed), "--model", options.model]
            command += ["--epochs", str(options.epochs), "--lms" if lms else "--no-lms"]
            command += ["--output", str(directory), "--resume"]
            if options.labels:
                command += ["--labels", options.labels]
            if options.memory_limit:
                command += ["--memory-limit", str(options.memory_limit)]
            runs.append(Run(resolution=resolution, seed=seed, directory=directory, train=tuple(command)))
    return runs


def average(runs: Sequence[Run], output: Path) -> pd.DataFrame:
    """Scores of every run, written as scores_per_model.csv; returns their mean over the models of each resolution."""
    from lms3d.console import progress
    from lms3d.scoring import scores, tables
    from lms3d.tasks.brats import evaluate, label_maps

    folders = label_maps.load_all([run.directory for run in runs])
    with progress() as report:
        found = evaluate.score_all(folders, progress=report)
    tables.write_csv(found, output / "scores_per_model.csv")
    return scores.average_over_models(found, {one.label: run.group for one, run in zip(folders, runs, strict=True)})


def differences(found: pd.DataFrame, low: str, high: str) -> list[tuple[str, str, float, float, int, int]]:
    """Per space and region: mean of the headline column for low and for high, cases in which high is better, cases."""
    from lms3d.scoring.columns import COLUMNS, HEADLINE

    sign, rows = (1 if COLUMNS[HEADLINE].larger_is_better else -1), []
    for (space, region), group in found.groupby(["space", "region"], sort=False):
        values = group.pivot(index="case", columns="predictions", values=HEADLINE)
        better = int((sign * (values[high] - values[low]) > 0).sum())
        rows.append((space, region, float(values[low].mean()), float(values[high].mean()), better, len(values)))
    return rows


def _report(found: pd.DataFrame, options: argparse.Namespace, conditions: list[str], output: Path) -> str:
    """Write tables and box plots; returns the text of report.md."""
    from lms3d.files import write_text
    from lms3d.scoring import scores, tables
    from lms3d.tasks.brats.evaluate import write_report

    low, high = f"{options.low}³", f"{options.high}³"
    models = f"{options.models} model{'s' if options.models > 1 else ''}"
    write_report(found, output, title=f"Dice per case, {low} and {high}, mean over {models}")
    (output / "summary.md").unlink()  # report.md has the same table
    compared = tables.markdown(
        ["space", "region", low, high, "difference", f"{high} better"],
        [
            [space, region, f"{a:.3f}", f"{b:.3f}", f"{b - a:+.3f}", f"{better} of {cases} cases"]
            for space, region, a, b, better, cases in differences(found, low, high)
        ],
    )
    summary = scores.to_markdown(scores.summarise(found))
    text = "\n".join([f"# {low} and {high}, {models} each", "", compared, summary, *conditions]) + "\n"
    write_text(output / "report.md", text)
    return text


def _conditions(runs: Sequence[Run], command: str) -> list[str]:
    """How the numbers were made: command, machine, and the seconds of each run."""
    import platform

    from lms3d.scoring.tables import markdown

    seconds = [[run.directory.name, f"{json.loads(run.finished.read_text())['seconds']:.0f}"] for run in runs]
    return [
        f"Dice per case: mean over the models of a resolution. Machine: {os.cpu_count()} cores, {platform.machine()}.",
        "Cube space: the truth at the high resolution; low predictions are resized to it, nearest neighbour.",
        "",
        markdown(["run", "training seconds"], seconds),
        f"Made by `{command}`.",
    ]


def _train(run: Run) -> None:
    """Train `run` to its end, from its last checkpoint if it has one. Does nothing for a finished run."""
    if run.finished.exists():
        return
    _run(run.train)
    write_json(run.finished, {"seconds": _training_seconds(run.directory / "history.csv")})


def _training_seconds(history: Path) -> float:
    """Sum over the epochs: right for an interrupted run too."""
    with open(history, newline="", encoding="utf-8") as file:
        return sum(float(row["seconds"]) for row in csv.DictReader(file))


def _predict(run: Run) -> None:
    if not (run.directory / "predictions" / "predictions.json").exists():
        _run([sys.executable, "-m", "lms3d.predict", str(run.directory)])


def _run(command: Sequence[str]) -> None:
    print("  $", shlex.join(("python", *command[1:])), flush=True)
    process = subprocess.Popen(command)
    try:
        exit_code = process.wait()
    except KeyboardInterrupt:  # the terminal has sent Ctrl-C to the command too: let it save its checkpoint
        process.wait()
        raise errors.Interrupted("interrupted; run the same command again to go on") from None
    if exit_code:
        raise CommandFailed(command, exit_code)


def _data(options: argparse.Namespace) -> Path:
    """The data set's folder; without --data, the embedded one."""
    if options.data:
        return Path(options.data).expanduser().resolve()
    from data.phantoms import brains
    from lms3d.console import progress

    with progress() as report:
        return brains.write(brains.default_directory(), progress=report)


def _write_split(data: Path, options: argparse.Namespace, path: Path) -> None:
    from data import split
    from data.brats import layouts

    if not path.exists():
        cases, _ = layouts.find_cases(data, labels=options.labels)
        split.save(split.make([case.id for case in cases], options.split_seed), path)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.compare_resolutions", description=_DESCRIPTION, epilog=_EPILOG)
    resolution, count = cli.checked(cli.resolution, "resolution"), cli.whole(1)
    add = parser.add_argument
    add("--low", type=resolution, metavar="N", default=144, help="the lower resolution (default: 144)")
    add("--high", type=resolution, metavar="N", default=192, help="the higher resolution (default: 192)")
    add("--models", type=count, metavar="N", default=4, help="models per resolution (default: 4)")
    add("--epochs", type=count, metavar="N", default=40, help="epochs of each model (default: 40)")
    add("--model", choices=cli.VOLUME_MODELS, default="isensee2017", help="network (default: isensee2017)")
    add("--data", metavar="DIR", default=None, help="BraTS or MSD folder (default: the embedded phantom data)")
    add("--labels", metavar="SCHEMA", default=None, help="what labels mean, where file names do not tell")
    add("--split-seed", type=cli.whole(0), metavar="N", default=0, help="draws the one split (default: 0)")
    add("--output", metavar="DIR", default=None, help="where everything goes (default: compare-LOW-HIGH)")
    lms = "train the high resolution with LMS, as the case study did (default: on); the low one never uses it"
    add("--lms", action=argparse.BooleanOptionalAction, default=True, help=lms)
    limit = "hard memory limit for both resolutions, such as 16GiB"
    add("--memory-limit", type=cli.checked(parse_size, "size"), metavar="SIZE", default=None, help=limit)
    return parser


if __name__ == "__main__":
    sys.exit(main())
