"""`python -m experiments.scaling`: how does training scale over ranks, here and on a modelled cluster?

1. Every run is `lms3d.train` under a launcher, with nothing but the number of ranks changed, on the same cores per rank.
   Strong: the same data, split; weak: the same steps for each rank.
2. The first epoch is warm-up and left out; times come from the files of the runs.
3. Tables have the form of the case study's Table 7. Efficiency is by samples per second.
4. The model of a cluster, up to 1024 ranks (ring all-reduce, contention, stragglers, data that does not divide), is checked
   against Table 7 and says how many of its parameters were fitted to it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from lms3d import cli, errors
from lms3d.atomic_files import write_json
from lms3d.experiments.harness import command, page, rank_study
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.harness.rank_study import RankStudy
from lms3d.experiments.harness.ranks import Launcher, RunFailed
from lms3d.experiments.harness.store import Record
from lms3d.experiments.harness.table import write_csv
from lms3d.experiments.scalability import case_study, measured, probe
from lms3d.experiments.scalability.measured import Measurement
from lms3d.experiments.scalability.model import STRONG, WEAK

_EPILOG = """\
examples:
  python -m experiments.scaling --model-only
  python -m experiments.scaling --ranks 1 2 --resolution 32 --epochs 3 --probe
  python -m experiments.scaling --ranks 1 2 4 8 --task chexnet --data ~/ChestX-ray14 -- --batch-size 64 --no-lms
  python -m experiments.scaling --ranks 1 4 8 --launcher "srun -n {ranks}" --data ~/BraTS2020 --resolution 192

writes into --output: scaling.csv, report.md, result.json (for experiments.cluster_comparison), model.csv,
probe.json; runs/, logs/, parts/"""

_NOTES = """\
Epoch s: median, the first epoch left out; training, validation and saving. Images/s, speed-up and efficiency are of whole
epochs and by samples per second: an epoch has the nearest whole number of steps. Step s: median training step of rank 0.
By the model: from the steps of one rank and the probed link (--probe); ranks of one machine also contend for its memory,
which it does not know."""


def _scaling(options: argparse.Namespace, typed: str) -> None:
    if options.model_only:
        print(case_study.report())
        _write_model(command.folder(options))
        print(f"written: {options.output}")
        return
    if options.epochs < 2:
        raise errors.InputError("--epochs 1: expected at least 2, since the first epoch is warm-up")
    study = _begun(options)
    if options.probe:
        with command.stoppable():
            probe.run(study.launcher, max(2, *options.ranks), study.output)
    _write_model(study.output)
    maker = partial(_maker, study, _training(options), options.weak_steps)
    study.measure(options.scaling, maker, lambda: _report(study, options.label, typed))


def _begun(options: argparse.Namespace) -> RankStudy:
    Launcher(template=options.launcher).command(1, [])  # InputError now, before anything is kept
    settings = {name: getattr(options, name) for name in ("weak_steps", "launcher")}
    return RankStudy.begin(options, {"training": _training(options), **settings})


def _maker(
    study: RankStudy, training: Sequence[str], weak_steps: int, scaling: str
) -> Callable[[int, float | None], Record]:
    """(ranks, seconds left) -> what a run of this kind measured. Strong: an epoch is one pass over the data, on any number of
    ranks. Weak: it is `weak_steps` steps of each rank, and validation is one step of each."""
    own = ("--steps-per-epoch", str(weak_steps), "--validation-steps", "1") if scaling == WEAK else ()

    def train(ranks: int, left: float | None) -> Record:
        run_dir, log = (study.output / folder / f"{scaling}-{ranks}" for folder in ("runs", "logs"))
        shutil.rmtree(run_dir, ignore_errors=True)  # of a run that was stopped: its times hold a second warm-up
        program = [*of_module("lms3d.train"), *training, *own, "--output", str(run_dir)]
        study.launcher.run(ranks, program, log.with_suffix(".txt"), patience_seconds=left)
        try:
            return asdict(measured.read(run_dir, scaling=scaling, ranks=ranks))
        except errors.InputError as error:
            raise RunFailed(str(error)) from None

    return train


def _training(options: argparse.Namespace) -> list[str]:
    """The options of lms3d.train that all runs share."""
    given = {"--task": options.task, "--data": options.data, "--resolution": options.resolution}
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return [*words, "--epochs", str(options.epochs), *options.training]


def _write_model(output: Path) -> None:
    case_study.write_predictions(output / "model.csv")


def _report(study: RankStudy, label: str, typed: str) -> list[str]:
    """Writes CSV and result.json of what there is, and returns the sections of report.md."""
    output, cores, records = study.output, study.cores_per_rank, study.found((STRONG, WEAK))
    found = [Measurement.of(record) for record in records]
    known = probe.load(output / "probe.json") if (output / "probe.json").exists() else None
    link = known.link if known else None
    write_csv(output / "scaling.csv", measured.COLUMNS, measured.rows(found, link))
    if found:
        write_json(output / "result.json", measured.content(found, label, typed))
    sections = ["# Scaling on this machine", measured.markdown_tables(found, link) or "Nothing was measured.", _NOTES]
    sections += [known.markdown()] if known else []
    sections += page.gaps(study.records, records, "The machine was not idle, do not trust these times")
    machine = page.machine(f"{cores} for each rank" if cores else "not bound to ranks")
    return [*sections, f"{machine} Made by `{typed}`.", case_study.report()]


class _ScalingParser(cli.Parser):
    """Everything after `--` is for lms3d.train."""

    def parse_args(self, words: Sequence[str]) -> argparse.Namespace:  # type: ignore[override]
        border = list(words).index("--") if "--" in words else len(words)
        options = super().parse_args(words[:border])
        options.training = list(words[border + 1 :])
        return options


def _options(parser: cli.Parser) -> None:
    add = parser.add_argument
    add("--scaling", choices=(STRONG, WEAK), nargs="+", default=[STRONG, WEAK], help="which kinds (default: both)")
    add("--task", metavar="NAME", default=None, help="as of lms3d.train")
    add("--data", type=cli.path, metavar="DIR", default=None, help="as of lms3d.train (default: the embedded data)")
    add("--resolution", type=cli.whole(1), metavar="N", default=None, help="as of lms3d.train")
    add("--epochs", type=cli.whole(1), metavar="N", default=3, help="of each run, the first not counted (default: 3)")
    add("--weak-steps", type=cli.whole(1), metavar="N", default=8, help="steps an epoch in weak scaling (default: 8)")
    add("--model-only", action="store_true", default=False, help="the model alone, in about a second; nothing is run")
    label = "name of the cluster in result.json (default: this machine)"
    add("--label", metavar="TEXT", default="this machine", help=label)
    add("--probe", action="store_true", default=False, help="first measure all-reduces between ranks (default: off)")
    rank_study.add_options(parser, "scaling")


main, _parser = command.of(
    "scaling", _scaling, _options, __doc__, _EPILOG, exits={1: "a run failed"}, resumed=True, kind=_ScalingParser
)


if __name__ == "__main__":
    sys.exit(main())
