"""`python -m experiments.decisive_comparison`: do whole volumes at full resolution segment better than what fits without LMS?

Arms, one network, one hard memory limit, the same seeds and folds:

    A   the cube of the low resolution                        (144^3: the largest without LMS on the case study's GPU)
    B   the cube of the high resolution, with LMS             (192^3)
    C   the box of 1 mm voxels, with LMS: nothing is resized  (160x192x160)
    D   patches of that box; a sliding window validates and predicts the whole of it  (128^3: what whole volumes must beat)
    E   A and C in bfloat16, called AE and CE

Cases are divided once: a test set that no choice has seen, and folds of the rest, in which one part chooses the epoch. Each arm has
a model for each fold and seed, trained by `lms3d.train`, and scored twice on the test set: with its best weights after equal
updates, and with those within equal time, which is what the first arm, that with the smallest samples, takes for all updates. Time
is counted in steps of an idle machine, measured before. Training follows from its seed step by step, so the second is
a prefix of the first: nothing is trained twice. An interrupted model is resumed; more --seeds or --folds may be added later.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from lms3d import cli, errors
from lms3d.data import pseudonyms
from lms3d.experiments.arms import pace, plan, report, rounds, runs
from lms3d.experiments.harness import command, commands, store
from lms3d.experiments.harness.ranks import HORVODRUN

_EPILOG = """\
examples:
  python -m experiments.decisive_comparison --data ~/BraTS2020 --memory-limit 15GiB --epochs 150 --folds 5 --seeds 3
  python -m experiments.decisive_comparison --data ~/BraTS2020 --memory-limit 15GiB --ranks 4 --launcher "srun -n {ranks}"
  python -m experiments.decisive_comparison --low 48 --high 64 --box 48x64x48 --patch 32 --epochs 40 --seeds 2 --arms A B C D

begins with short trainings that measure the seconds of each arm's steps: the machine should be idle until the first
"[fold 0, seed 1]"
writes into --output: runs/<arm>-fold<i>-seed<k>/, the splits, test.txt, pace.json, rounds/ (scores of each fold and seed), updates/
and time/ (tables, figures and report.html of lms3d.evaluate), report.md
runs/ may be deleted as far as rounds/ goes; without runs/ the rest is small enough to go on with on another machine"""


def _compare(options: argparse.Namespace, typed: str) -> None:
    pseudonyms.start(options.anonymous)
    output = command.folder(options)
    store.remember(command.settings(options, "anonymous", "folds", "seeds"), output)
    if owned := [word for word in shlex.split(options.train_options) if word.split("=")[0] in runs.OWNED]:
        raise errors.InputError(f"--train-options: found {owned[0]}, which the comparison sets itself; leave it out")
    runs.launched([], options)  # InputError now, not after the data set
    data = commands.data_folder(options.data)
    plan.divide(data, options, output)
    plan.require_unseen(options.start_from, data, options, output)
    arms = plan.arms(options)
    paces = pace.measured(arms, data, options, output)
    within = {arm.name: pace.epochs_within(paces, arm, arms, options.epochs) for arm in arms}
    for fold, seed in plan.rounds(options):
        rounds.run(arms, fold, seed, within, data, options, output)
    report.write(arms, paces, within, options, data, typed, output)
    print(f"written: {output}")


def _options(parser: cli.Parser) -> None:
    add, count = parser.add_argument, cli.whole(1)
    names = list(plan.NAMES)
    add("--arms", nargs="+", choices=names, metavar="ARM", default=names, help=f"of {', '.join(names)} (default: all)")
    command.add_resolution(parser, 144, option="--low", what="A: side of the low cube")
    command.add_resolution(parser, 192, option="--high", what="B: side of the high cube")
    box = "C: box of 1 mm voxels (default: 160x192x160)"
    add("--box", type=cli.checked(cli.box, "box"), metavar="XxYxZ", default=(160, 192, 160), help=box)
    command.add_resolution(parser, 128, option="--patch", what="D: side of the patches")
    add("--epochs", type=count, metavar="N", default=100, help="of every model (default: 100)")
    add("--folds", type=count, metavar="N", default=1, help="folds to train, of --of-folds (default: 1)")
    parts = "parts of all but the test set, of which one chooses the epoch (default: 5)"
    add("--of-folds", type=cli.whole(2), metavar="K", default=5, help=parts)
    add("--seeds", type=count, metavar="N", default=1, help="models for each arm and fold (default: 1)")
    share = "share of the patients that is tested on (default: 0.3)"
    add("--test-share", type=cli.number(0, 1), metavar="X", default=0.3, help=share)
    margin = "difference in Dice that counts as equal (default: 0.01)"
    add("--margin", type=cli.number(0), metavar="X", default=0.01, help=margin)
    command.add_model(parser)
    add("--targets", choices=("labels", "regions"), default="regions", help="what is learnt (default: regions)")
    start = "begin every model with the weights of an earlier run that has seen no case of the test set (default: none)"
    add("--start-from", metavar="RUN_DIR", default=None, help=start)
    more = 'options of lms3d.train for all arms, such as "--distort all --loss dice_cross_entropy" (default: none)'
    command.add_train_options(parser, more)
    command.add_size(parser, "--memory-limit", None, "one hard limit for all arms")
    add("--ranks", type=count, metavar="N", default=1, help="processes that train each model (default: 1)")
    launcher = "starts them, if there are several; {ranks} stands for their number (default: %(default)r)"
    add("--launcher", metavar="COMMAND", default=HORVODRUN, help=launcher)
    command.add_volumes(parser)
    command.add_output(parser, "decisive-comparison")
    command.add_anonymous(parser)


main, _parser = command.of(
    "decisive_comparison", _compare, _options, __doc__, _EPILOG, exits={3: "a model does not fit into memory"}, resumed=True
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
