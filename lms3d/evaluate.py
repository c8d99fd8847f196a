"""`python -m lms3d.evaluate`: score predictions against the truth, as tables and figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lms3d import cli, errors

_DESCRIPTION = """\
Score predictions against the true label maps: Dice of the whole tumour (WT), the tumour core (TC) and the enhancing
tumour (ET) for every case, as CSV, as a summary table and as box plots.

PREDICTIONS is a run directory (runs/192) after `python -m lms3d.predict runs/192`, or any folder that predict wrote.
Give several to see them side by side. Everything is scored twice:
  native  on the grid of the original files, against the original truth: the score to report
  cube    on the largest cube of those given: predictions at a lower resolution are first resized to it, as in the
          LMS case study

Of chest X-rays, PREDICTIONS is such a directory or its predictions.csv, one at a time. It gives the area under the ROC
curve (AUROC) of each finding, with 95 % intervals."""

_EPILOG = """\
examples:
  python -m lms3d.evaluate runs/192
  python -m lms3d.evaluate runs/144 runs/192 --output comparison
  python -m lms3d.evaluate runs/192/predictions --truth ~/MICCAI_BraTS2020_TrainingData --hd95
  python -m lms3d.evaluate radiographs/predictions.csv --truth ~/ChestX-ray14

writes into --output: scores.csv, summary.csv, summary.md, dice_native.png/.pdf, dice_cube.png/.pdf; of chest X-rays
auroc.csv, auroc.md, roc.png, auroc.png
exit codes: 0 done, 2 wrong option or wrong input (one line says what), 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Recognise the predictions, score, tabulate, draw. Returns the exit code."""
    return errors.run(lambda: _evaluate(_parser().parse_args(arguments)))


def _evaluate(options: argparse.Namespace) -> None:
    from lms3d.config import TrainConfig
    from lms3d.tasks import TASKS
    from lms3d.tasks.task import EvaluateRequest

    paths = tuple(Path(path).expanduser() for path in options.predictions)
    tasks = [TASKS[name] for name in TASKS.names]
    # Where no task recognises anything, the default one says what it was looking for.
    task = next((task for task in tasks if any(map(task.recognises, paths))), TASKS[TrainConfig.task])
    found = task.evaluate(EvaluateRequest(
        predictions=paths, output=Path(options.output).expanduser() if options.output else None, truth=options.truth,
        labels=options.labels, hd95=options.hd95,
    ))  # fmt: skip
    print(found.table)
    print("written:", *(f"  {path}" for path in found.written), sep="\n")


def _parser() -> argparse.ArgumentParser:
    parser = cli.Parser(prog="python -m lms3d.evaluate", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument(
        "predictions", nargs="+", metavar="PREDICTIONS", help="run directory, predictions folder or table"
    )
    add = parser.add_argument
    add("--truth", metavar="DIR", default=None, help="data set with the truth (default: the one predicted from)")
    meaning = "what the truth's label values mean, such as brats2021, where its file names do not tell"
    add("--labels", metavar="SCHEMA", default=None, help=meaning)
    where = (
        "where tables and figures go (default: evaluation/ beside the predictions, that is RUN_DIR/predictions/evaluation of a "
        "run; ./evaluation for several)"
    )
    add("--output", metavar="DIR", default=None, help=where)
    add("--hd95", action="store_true", default=False, help="add the 95%% surface distance in mm, native space (slow)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
