"""`python -m experiments.scaling`: how does training scale over ranks? Measured on this machine, modelled up to 1024.

1. Every run is `lms3d.train` under a launcher, with nothing but the number of ranks changed, on the same cores per rank.
2. The first epoch is warm-up and left out; times come from the files of the runs.
3. Tables have the form of the case study's Table 7. Efficiency is by samples per second.
4. The model is checked against Table 7 and says how many of its parameters were fitted to it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.feeding.parts import SomeFailed, remember
from experiments.scalability import launch, model_report, probe, result, runs, table
from experiments.scalability.case_study import fitted
from experiments.scalability.model import STRONG, WEAK
from lms3d import cli, errors
from lms3d.files import writable_folder, write_json, write_text

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


BUSY = 0.15
"""Share of the cores in use by others above which the report calls a run disturbed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, report. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["python", "-m", "experiments.scaling", *words])
    own, training = _parted(words)
    return errors.run(lambda: _scaling(_parser().parse_args(own), training, command))


def _scaling(options: argparse.Namespace, training: list[str], command: str) -> None:
    output = writable_folder(Path(options.output).expanduser(), "--output")
    if options.model_only:
        _model(output)
        print(f"written: {output}")
        return
    if options.epochs < 2:
        raise errors.InputError("--epochs 1: expected at least 2, since the first epoch is warm-up")
    runner = _runner(options, training, output)
    wanted = runs.wanted(sorted(set(options.ranks)), options.scaling, _training(options, training), options.weak_steps)
    try:
        if options.probe:
            probe.run(runner.launcher, max(2, *options.ranks), output)
        for run in wanted:
            runner.train(run)
            _write_measured(output, runner, options.label, command)
    except KeyboardInterrupt:
        raise errors.Interrupted("interrupted; run the same command again to go on") from None
    finally:
        print(_write_measured(output, runner, options.label, command))
        _model(output)
        print(f"written: {output}")
    if runner.failed:
        raise SomeFailed(f"{len(runner.failed)} of the runs failed: {runner.failed[0]}")


def _runner(options: argparse.Namespace, training: list[str], output: Path) -> runs.Runner:
    cores = options.cores_per_rank or launch.default_cores_per_rank(max(options.ranks))
    launcher = launch.Launcher(template=options.launcher, cores_per_rank=cores)
    launcher.command(1, [])  # InputError now, not after a run
    settings = {name: getattr(options, name) for name in ("weak_steps", "launcher")}
    remember({"training": _training(options, training), **settings, "cores_per_rank": cores}, output)
    return runs.Runner(output, launcher, minutes=options.minutes, again=options.again)


def _training(options: argparse.Namespace, more: Sequence[str]) -> list[str]:
    """Options of lms3d.train that all runs share."""
    given = {"--task": options.task, "--data": options.data, "--resolution": options.resolution}
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return [*words, "--epochs", str(options.epochs), *more]


def _model(output: Path) -> None:
    """Print the model's tables, then write its CSV and figure."""
    print(model_report.report(), flush=True)
    model_report.write_csv(model_report.predictions(fitted()), output / "model.csv")
    from experiments.scalability import figure  # after the tables: Matplotlib takes longer than they do

    figure.draw_model(output / "model.png")


def _write_measured(output: Path, runner: runs.Runner, label: str, command: str) -> str:
    """CSV, figure, result.json and report.md of what there is; returns the report of the real runs."""
    from experiments.scalability import figure

    found = runner.measurements()
    known = probe.load(output / "probe.json") if (output / "probe.json").exists() else None
    link = known.link if known else None
    table.write_csv(found, link, output / "scaling.csv")
    figure.draw_measured(found, link, output / "scaling.png")
    if found:
        write_json(output / "result.json", result.content(found, label, command))
    parts = ["# Scaling on this machine", table.markdown_tables(found, link) or "Nothing was measured.", _NOTES]
    parts += [known.markdown()] if known else []
    busy = [f"{m.name}: {m.busy:.0%} of the cores in use by others before it began" for m in found if m.busy > BUSY]
    for title, lines in (
        ("The machine was not idle, do not trust these times", busy), ("Skipped", runner.skipped), ("Failed", runner.failed),
    ):  # fmt: skip
        parts += ["\n".join([f"{title}:", *(f"- {line}" for line in lines)])] if lines else []
    text = "\n\n".join([*parts, _conditions(runner, command)]) + "\n"
    write_text(output / "report.md", text + "\n" + model_report.report())
    return text


def _conditions(runner: runs.Runner, command: str) -> str:
    import platform

    cores = runner.launcher.cores_per_rank
    bound = f"{cores} for each rank" if cores else "not bound to ranks"
    return f"Machine: {os.cpu_count()} cores ({bound}), {platform.machine()}. Made by `{command}`."


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Options of this program, and those of lms3d.train after `--`."""
    if "--" not in words:
        return words, []
    border = words.index("--")
    return words[:border], words[border + 1 :]


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.scaling", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("--ranks", type=cli.whole(1), nargs="+", metavar="N", default=[1, 2], help="numbers of ranks (default: 1 2)")
    add("--scaling", choices=(STRONG, WEAK), nargs="+", default=[STRONG, WEAK], help="which kinds (default: both)")
    add("--task", metavar="NAME", default=None, help="as of lms3d.train")
    add("--data", type=cli.path, metavar="DIR", default=None, help="as of lms3d.train (default: the embedded data)")
    add("--resolution", type=cli.whole(1), metavar="N", default=None, help="as of lms3d.train")
    add("--epochs", type=cli.whole(1), metavar="N", default=3, help="of each run, the first not counted (default: 3)")
    add("--weak-steps", type=cli.whole(1), metavar="N", default=8, help="steps an epoch in weak scaling (default: 8)")
    add(
        "--launcher", metavar="COMMAND", default=launch.HORVODRUN,
        help="starts the ranks, {ranks} stands for their number (default: %(default)r)",
    )  # fmt: skip
    add(
        "--cores-per-rank", type=cli.whole(1), metavar="N", default=None,
        help="cores that each rank has, for any number of ranks (default: all shared by the most ranks; with a GPU unbound)",
    )  # fmt: skip
    add("--model-only", action="store_true", default=False, help="the model alone, in about a second; nothing is run")
    add(
        "--label",
        metavar="TEXT",
        default="this machine",
        help="name of the cluster in result.json (default: this machine)",
    )
    add("--probe", action="store_true", default=False, help="first measure all-reduces between ranks (default: off)")
    add(
        "--minutes", type=cli.number(0), metavar="X", default=None,
        help="time limit: runs that do not fit into what is left of it are skipped or ended (default: none)",
    )  # fmt: skip
    add("--again", action="store_true", default=False, help="run anew what is there (default: off)")
    add("--output", metavar="DIR", default="scaling", help="where everything goes (default: scaling)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
