"""`python -m experiments.scaling`: how does training scale over ranks? Measured on this machine, modelled up to 1024.

1. Every run is `lms3d.train` under a launcher, with nothing but the number of ranks changed, on the same cores per rank.
2. The first epoch is warm-up and left out; times come from the files of the runs.
3. Tables have the form of the case study's Table 7. Efficiency is by samples per second.
4. The model is checked against Table 7 and says how many of its parameters were fitted to it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lms3d import cli, errors
from lms3d.atomic_files import writable_folder, write_json
from lms3d.experiments.harness import command, page, store
from lms3d.experiments.harness.command import SomeFailed
from lms3d.experiments.harness.ranks import Launcher, default_cores_per_rank
from lms3d.experiments.scalability import model_report, probe, result, runs, table
from lms3d.experiments.scalability.case_study import fitted
from lms3d.experiments.scalability.model import STRONG, WEAK

_DESCRIPTION = """\
Measure how training scales over ranks on this machine (strong: the same data, split; weak: the same steps for each rank), and
model a cluster: ring all-reduce, contention, stragglers and data that does not divide, checked against the LMS case study.

Each run is saved as it finishes; started again with the same --output only what is missing is run."""

_EPILOG = """\
examples:
  python -m experiments.scaling --model-only
  python -m experiments.scaling --ranks 1 2 --resolution 32 --epochs 3 --probe
  python -m experiments.scaling --ranks 1 2 4 8 --task chexnet --data ~/ChestX-ray14 -- --batch-size 64 --no-lms
  python -m experiments.scaling --ranks 1 4 8 --launcher "srun -n {ranks}" --data ~/BraTS2020 --resolution 192

writes into --output: scaling.csv, scaling.png, report.md, result.json (for experiments.cluster_comparison), model.csv, model.png,
probe.json; runs/, logs/, parts/
exit codes: 0 done, 1 a run failed, 2 wrong option or input, 130 interrupted (run again to go on)"""

_NOTES = """\
Epoch s: median, the first epoch left out; training, validation and saving. Images/s, speed-up and efficiency are of whole
epochs and by samples per second: an epoch has the nearest whole number of steps. Step s: median training step of rank 0.
By the model: from the steps of one rank and the probed link (--probe); ranks of one machine also contend for its memory,
which it does not know."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing and reports. Returns the exit code."""
    return command.main("scaling", _parser, _scaling, arguments)


def _scaling(options: argparse.Namespace, typed: str) -> None:
    output = writable_folder(Path(options.output).expanduser(), "--output")
    if options.model_only:
        _model(output)
        print(f"written: {output}")
        return
    if options.epochs < 2:
        raise errors.InputError("--epochs 1: expected at least 2, since the first epoch is warm-up")
    runner = _runner(options, output)
    wanted = runs.wanted(sorted(set(options.ranks)), options.scaling, _training(options), options.weak_steps)
    try:
        with command.stoppable():
            if options.probe:
                probe.run(runner.launcher, max(2, *options.ranks), output)
            for run in wanted:
                runner.train(run)
                _write_measured(runner, options.label, typed)
    finally:
        print(_write_measured(runner, options.label, typed))
        _model(output)
        print(f"written: {output}")
    if runner.failed:
        raise SomeFailed(f"{len(runner.failed)} of the runs failed: {runner.failed[0]}")


def _runner(options: argparse.Namespace, output: Path) -> runs.Runner:
    cores = options.cores_per_rank or default_cores_per_rank(max(options.ranks))
    launcher = Launcher(template=options.launcher, cores_per_rank=cores)
    launcher.command(1, [])  # InputError now, not after a run
    settings = {name: getattr(options, name) for name in ("weak_steps", "launcher")}
    store.remember({"training": _training(options), **settings, "cores_per_rank": cores}, output)
    return runs.Runner(output, launcher, minutes=options.minutes, again=options.again)


def _training(options: argparse.Namespace) -> list[str]:
    """The options of lms3d.train that all runs share."""
    given = {"--task": options.task, "--data": options.data, "--resolution": options.resolution}
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return [*words, "--epochs", str(options.epochs), *options.training]


def _model(output: Path) -> None:
    """Print the model's tables, then write its CSV and figure."""
    print(model_report.report(), flush=True)
    model_report.write_predictions(model_report.predictions(fitted()), output / "model.csv")
    from lms3d.experiments.scalability import figure  # after the tables: Matplotlib takes longer than they do

    figure.draw_model(output / "model.png")


def _write_measured(runner: runs.Runner, label: str, typed: str) -> str:
    """Writes CSV, figure, result.json and report.md of what there is, and returns the report of the real runs."""
    from lms3d.experiments.scalability import figure

    found, output = runner.measurements(), runner.folder
    known = probe.load(output / "probe.json") if (output / "probe.json").exists() else None
    link, cores = known.link if known else None, runner.launcher.cores_per_rank
    table.write_csv(found, link, output / "scaling.csv")
    figure.draw_measured(found, link, output / "scaling.png")
    if found:
        write_json(output / "result.json", result.content(found, label, typed))
    records = [record for scaling in (STRONG, WEAK) for record in runner.found(scaling)]
    sections = ["# Scaling on this machine", table.markdown_tables(found, link) or "Nothing was measured.", _NOTES]
    sections += [known.markdown()] if known else []
    sections += page.gaps(runner, records, "The machine was not idle, do not trust these times")
    sections += [f"{page.machine(f'{cores} for each rank' if cores else 'not bound to ranks')} Made by `{typed}`."]
    page.write(output / "report.md", [*sections, model_report.report()])
    return "\n\n".join(sections) + "\n"


class _Parser(cli.Parser):
    """Everything after `--` is for lms3d.train."""

    def parse_args(self, words: Sequence[str]) -> argparse.Namespace:  # type: ignore[override]
        border = list(words).index("--") if "--" in words else len(words)
        options = super().parse_args(words[:border])
        options.training = list(words[border + 1 :])
        return options


def _parser() -> cli.Parser:
    parser = _Parser(prog="python -m experiments.scaling", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("--ranks", type=cli.whole(1), nargs="+", metavar="N", default=[1, 2], help="numbers of ranks (default: 1 2)")
    add("--scaling", choices=(STRONG, WEAK), nargs="+", default=[STRONG, WEAK], help="which kinds (default: both)")
    add("--task", metavar="NAME", default=None, help="as of lms3d.train")
    add("--data", type=cli.path, metavar="DIR", default=None, help="as of lms3d.train (default: the embedded data)")
    add("--resolution", type=cli.whole(1), metavar="N", default=None, help="as of lms3d.train")
    add("--epochs", type=cli.whole(1), metavar="N", default=3, help="of each run, the first not counted (default: 3)")
    add("--weak-steps", type=cli.whole(1), metavar="N", default=8, help="steps an epoch in weak scaling (default: 8)")
    command.add_launcher(parser)
    add("--model-only", action="store_true", default=False, help="the model alone, in about a second; nothing is run")
    label = "name of the cluster in result.json (default: this machine)"
    add("--label", metavar="TEXT", default="this machine", help=label)
    add("--probe", action="store_true", default=False, help="first measure all-reduces between ranks (default: off)")
    command.add_resumable(parser, "scaling")
    return parser


if __name__ == "__main__":
    sys.exit(main())
