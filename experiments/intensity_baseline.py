"""`python -m experiments.intensity_baseline`: what do intensities alone score, without a network?

Quadratic discriminant analysis of the four smoothed sequences, fitted to the training cases and scored on the validation cases, on
the grid of the files; the largest component of its voxels is kept (`lms3d.tasks.brats.intensity_baseline`). A network that does not
score more has learnt nothing but intensities: `lms3d.train` on the embedded brains, `experiments.decisive_comparison` and
`experiments.compare_resolutions` show the baseline beside their networks.
"""

from __future__ import annotations

import argparse
import sys

from lms3d import cli
from lms3d.data import pseudonyms, split
from lms3d.data.brats import layouts
from lms3d.experiments.harness import baseline, command, commands, page, table
from lms3d.tasks.brats.intensity_baseline import TITLE

_EPILOG = """\
examples:
  python -m experiments.intensity_baseline
  python -m experiments.intensity_baseline --data ~/BraTS2020 --split runs/192/split.json

writes into --output: intensity_baseline.json (Dice of each case), report.md"""


def _run(options: argparse.Namespace, typed: str) -> None:
    pseudonyms.start(options.anonymous)
    output = command.folder(options)
    data = commands.data_folder(options.data)
    found = layouts.find_cases(data, labels=options.labels, require_complete=False)
    parts = (
        split.load(options.split)
        if options.split
        else split.make(found.complete, options.split_seed, patients=found.patients)
    )
    dice = baseline.measured(data, options.labels, parts.training, parts.validation, output)
    head = ["region", "cases", "Dice", "95 % from", "to"]
    rows = [row.cells() for row in baseline.rows(dice)]
    note = f"Fitted to {len(parts.training)} cases of {data.name}; cases: those that validate. Made by `{typed}`."
    page.publish(output / "report.md", [f"# {TITLE.capitalize()}", table.markdown(head, rows), note])


def _options(parser: cli.Parser) -> None:
    command.add_volumes(parser)
    drawn = "split.json of a run (default: a split drawn by --split-seed)"
    parser.add_argument("--split", type=cli.path, metavar="FILE", default=None, help=drawn)
    seed = "draws the split, as --seed of lms3d.train does (default: 0)"
    parser.add_argument("--split-seed", type=cli.whole(0), metavar="N", default=0, help=seed)
    command.add_output(parser, "intensity-baseline")
    command.add_anonymous(parser)


main, _parser = command.of("intensity_baseline", _run, _options, __doc__, _EPILOG)


if __name__ == "__main__":
    sys.exit(main())
