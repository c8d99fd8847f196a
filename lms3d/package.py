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
arrays. A SHA-256 of every part finds damage. The same run gives the same bytes.

With --format, the network of a run or of a package goes into a form that other programs run, in float32 and without lms3d's own
operations. Before it is kept, it is compared with the network on a case of the run, or on random numbers if it is of a package or
the data are gone. It takes normalised samples; the model.json in it says how to make them."""

_EPILOG = """\
examples:
  python -m lms3d.package runs/192
  python -m lms3d.package runs/192 --output tumours.lms3d
  python -m lms3d.package tumours.lms3d --format onnx           # needs: pip install 'lms3d[export]'
  python -m lms3d.predict tumours.lms3d --data ~/new_patients --output ~/segmented

exit codes: 0 done, 2 wrong option or wrong input, 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the run, build its network once from its name, write the file. Returns the exit code."""
    return errors.run(lambda: _package(_parser().parse_args(arguments)))


def _package(options: argparse.Namespace) -> None:
    from lms3d import console
    from lms3d.data import pseudonyms
    from lms3d.device import startup
    from lms3d.tasks.packages import archive, export, package, summary

    pseudonyms.start(options.anonymous)
    if options.format != "lms3d":
        if not options.run_dir.is_file():
            package.require_run(options.run_dir)
        path = export.target(options.run_dir, options.format, options.output)
        case = export.sample(options.run_dir)
        startup.start_tensorflow(without_gpu=True)
        console.summary(*export.export(options.run_dir, options.format, path, case))
        return
    package.require_run(options.run_dir)
    output = package.target(options.run_dir, options.output)
    startup.start_tensorflow(without_gpu=True)  # nothing is computed
    content = package.make(options.run_dir)
    archive.write(content, output)
    console.summary(*summary.summary(content, output))


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.package", description=_DESCRIPTION, epilog=_EPILOG)
    place = cli.checked(cli.place, "path")
    parser.add_argument(
        "run_dir", type=place, metavar="RUN_DIR", help="folder of a trained run; with --format, or a package"
    )
    forms = "what to write: a package, a SavedModel folder, or an ONNX file (default: lms3d, a package)"
    parser.add_argument("--format", choices=("lms3d", "savedmodel", "onnx"), default="lms3d", help=forms)
    where = "file to write (default: RUN_DIR/NAME.lms3d, NAME.onnx or NAME-savedmodel, with the NAME of the folder)"
    parser.add_argument("--output", type=place, metavar="FILE", default=None, help=where)
    cli.add_anonymous_option(parser)
    parser.set_defaults(anonymous=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
