"""`python -m lms3d.package`: puts a trained run into one self-describing file, which predicts anywhere and holds no code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lms3d import cli, errors

_DESCRIPTION = """\
Put a trained run into one file: the best weights, and everything that prediction needs to know: network, shape, labels,
preprocessing, statistics of the training data. `python -m lms3d.predict FILE --data DIR` uses it like the run directory, on a
machine that has never seen the run. It holds no code: the network is built from its registered name, and weights are plain
arrays. A SHA-256 of every part finds damage. The same run gives the same bytes."""

_EPILOG = """\
examples:
  python -m lms3d.package runs/192
  python -m lms3d.package runs/192 --output tumours.lms3d
  python -m lms3d.predict tumours.lms3d --data ~/new_patients --output ~/segmented

exit codes: 0 done, 2 wrong option or wrong input, 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the run, build its network once from its name, write the file. Returns the exit code."""
    return errors.run(lambda: _package(_parser().parse_args(arguments)))


def _package(options: argparse.Namespace) -> None:
    from lms3d import console
    from lms3d.data import pseudonyms
    from lms3d.device import startup
    from lms3d.tasks.packages import archive, package, summary

    pseudonyms.start(options.anonymous)
    package.require_run(options.run_dir)
    output = package.target(options.run_dir, options.output)
    startup.start_tensorflow(without_gpu=True)  # nothing is computed
    content = package.make(options.run_dir)
    archive.write(content, output)
    console.summary(*summary.summary(content, output))


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.package", description=_DESCRIPTION, epilog=_EPILOG)
    place = cli.checked(cli.place, "path")
    parser.add_argument("run_dir", type=place, metavar="RUN_DIR", help="folder of a trained run")
    where = "file to write (default: RUN_DIR/NAME.lms3d, with the NAME of the folder)"
    parser.add_argument("--output", type=place, metavar="FILE", default=None, help=where)
    cli.add_anonymous_option(parser)
    parser.set_defaults(anonymous=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
