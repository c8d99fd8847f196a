"""`python -m lms3d.evaluate`: score predictions against the truth, as tables and figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d import cli, errors
from lms3d.common import program

if TYPE_CHECKING:
    from lms3d.tasks.task import Task

_DESCRIPTION = """\
Score predictions against the true label maps by the rules of a BraTS challenge: Dice, HD95, NSD, volumes and lesion-wise
scores of the whole tumour (WT), the tumour core (TC), the enhancing tumour (ET) and its other regions, for every case, as CSV,
as a summary table, as box plots and as one page, report.html.

PREDICTIONS is a run directory (runs/192) after `python -m lms3d.predict runs/192`, any folder that predict wrote, or a folder of
label maps that another program wrote, whose names contain those of the cases. Give several to compare them, or the folds of a
cross-validation with --pool to score all cases together. The first two are scored twice:
  native  on the grid of the original files, against the original truth: the score to report
  cube    on the largest cube of those given: predictions at a lower resolution are first resized to it, as in the
          LMS case study

Label maps of any other organ get Dice, HD95 and NSD of each class, or of each region, of the dataset.json of --truth.

For chest X-rays, PREDICTIONS is such a directory or its predictions.csv, one at a time. The scores are the areas under the ROC
curves (AUROC) of the findings, with 95 % intervals."""

_EPILOG = """\
examples:
  python -m lms3d.evaluate runs/192
  python -m lms3d.evaluate runs/144 runs/192 --output comparison
  python -m lms3d.evaluate runs/192/predictions --truth ~/MICCAI_BraTS2020_TrainingData --scoring brats2023
  python -m lms3d.evaluate nnunet_output --truth ~/BraTS2021_TrainingData --prediction-labels nnunet
  python -m lms3d.evaluate --group 144=runs/144-seed1,runs/144-seed2 --group 192=runs/192-seed1,runs/192-seed2
  python -m lms3d.evaluate --pool 192=runs/192-fold0,runs/192-fold1,runs/192-fold2
  python -m lms3d.evaluate runs/192 --submission to_upload
  python -m lms3d.evaluate runs/abdomen/predictions nnunet_output --truth ~/Dataset017_Abdomen
  python -m lms3d.evaluate radiographs/predictions.csv --truth ~/ChestX-ray14

writes into --output: report.html, scores.csv, summary.csv, summary.md, metrics.csv, dice_native.png/.pdf, dice_cube.png/.pdf; of
several predictions comparison.csv and paired.png/.pdf; of chest X-rays auroc.csv, auroc.md, roc.png, auroc.png
exit codes: 0 done, 2 wrong option or wrong input (one line says what), 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Recognise the predictions, score, tabulate, draw. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return errors.run(lambda: _evaluate(_parser().parse_args(arguments), arguments))


def _evaluate(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    from lms3d.data import pseudonyms
    from lms3d.scoring import tables
    from lms3d.tasks.task import EvaluateRequest

    pseudonyms.start(options.anonymous)
    paths = tuple(options.predictions)
    named = [path for _, members in (*options.group, *options.pool) for path in members]
    if not paths and not named:
        raise errors.InputError(
            "PREDICTIONS: found none; expected run directories or folders of label maps; name at least one, a --group or a --pool"
        )
    found = _task(options, (*paths, *named)).evaluate(EvaluateRequest(
        predictions=paths, output=options.output, truth=str(options.truth) if options.truth else None,
        labels=options.labels, scoring=options.scoring, prediction_labels=options.prediction_labels,
        groups=tuple(options.group), pools=tuple(options.pool), margin=options.margin, worst=options.worst,
        submission=options.submission, command=() if options.anonymous else (program.started_as("lms3d.evaluate"), *arguments),
    ))  # fmt: skip
    print(found.table)
    print("written:", *(tables.printable(f"  {path}") for path in found.written), sep="\n")


def _task(options: argparse.Namespace, paths: Sequence[Path]) -> Task:
    """The task that recognises a prediction, or else, unless an option is given that only one task has, the truth.

    If none does, the default one says what it looked for.
    """
    from lms3d.tasks import DEFAULT_TASK, TASKS

    tasks = [TASKS[name] for name in TASKS.names]
    known = next((task for task in tasks if any(map(task.recognises, paths))), None)
    if known is None and options.truth and not (options.labels or options.scoring or options.prediction_labels):
        known = next((task for task in tasks if task.knows(options.truth)), None)
    return known or TASKS[DEFAULT_TASK]


def group(text: str) -> tuple[str, tuple[Path, ...]]:
    """The text "192=runs/a,runs/b" -> the name and the folders of a group or a pool."""
    name, _, folders = text.partition("=")
    paths = folders.split(",")
    if not name or not all(paths):
        raise errors.InputError(f"{text!r} is not NAME=RUN,RUN,.. such as 192=runs/192-seed1,runs/192-seed2")
    return name, tuple(map(cli.place, paths))


def named(text: str) -> str:
    """A name. InputError for "", such as a variable of the shell that is not set."""
    if not text:
        raise errors.InputError("an empty name; leave the option out for the default")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = cli.Parser(prog="python -m lms3d.evaluate", description=_DESCRIPTION, epilog=_EPILOG)
    folder, name = cli.checked(cli.place, "path"), cli.checked(named, "name")
    parser.add_argument(
        "predictions", nargs="*", default=[], metavar="PREDICTIONS", type=folder,
        help="run directory, predictions folder, folder of label maps or table",
    )  # fmt: skip
    add = parser.add_argument
    truth = "data set with the truth (default: the one predicted from)"
    add("--truth", metavar="DIR", type=folder, default=None, help=truth)
    meaning = "what the truth's label values mean, such as brats2021, if its file names do not tell"
    add("--labels", metavar="SCHEMA", type=name, default=None, help=meaning)
    rules = (
        "rules of a challenge: brats2017, or brats2023, brats2024, brats2025, brats2026, with or without a set, such as "
        "brats2024-ped; physical, alone or behind a name (brats2026-met-physical): in millimetres even if the challenge's script "
        "takes voxels for them (default: by the labels; the tables name it)"
    )
    add("--scoring", metavar="RULES", type=name, default=None, help=rules)
    coding = "what the values of another program's label maps mean: a SCHEMA, or nnunet (default: as in the truth)"
    add("--prediction-labels", metavar="SCHEMA", type=name, default=None, help=coding)
    members = (
        "predictions of models that differ in their seed, or names of pools that do, as one; may be given several times"
    )
    add("--group", metavar="NAME=RUN,..", type=cli.checked(group, "group"), action="append", default=[], help=members)
    folds = "predictions of the folds of a cross-validation, scored as one; may be given several times"
    add("--pool", metavar="NAME=RUN,..", type=cli.checked(group, "pool"), action="append", default=[], help=folds)
    equal = "difference in Dice within which two predictions count as equal (default: 0.01)"
    add("--margin", metavar="X", type=cli.number(0), default=None, help=equal)
    flat = (
        "only write the predictions of one run to DIR as a challenge wants them: <case>.nii.gz with the input's header"
    )
    add("--submission", metavar="DIR", type=folder, default=None, help=flat)
    add("--worst", metavar="N", type=cli.whole(0), default=None, help="cases on the page of the worst (default: 6)")
    cli.add_anonymous_option(parser)
    parser.set_defaults(anonymous=False)
    where = (
        "where tables and figures go (default: evaluation/ beside the predictions, that is RUN_DIR/predictions/evaluation of a "
        "run; ./evaluation for several)"
    )
    add("--output", metavar="DIR", type=folder, default=None, help=where)
    return parser


if __name__ == "__main__":
    sys.exit(main())
