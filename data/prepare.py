"""`python -m data.prepare`: check a data set and build its training cache ahead of time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from data import brats, cache
from data.errors import DataError
from data.files import Progress
from data.preprocess import check_resolution
from data.schema import SCHEMAS

_DESCRIPTION = """\
Check a brain tumour data set and build its training cache: every case is read, cropped to the brain, resized to a cube
and stored. Training does the same by itself; do it ahead to find bad files early or to prepare on another machine.

DATA is the folder of an unpacked data set: BraTS 2017-2021, 2023, 2024, TCIA (Pre-operative TCGA), or
Task01_BrainTumour of the Medical Segmentation Decathlon. Any depth of folders is searched."""

_EPILOG = """\
examples:
  python -m data.prepare ~/MICCAI_BraTS2020_TrainingData --resolution 144
  python -m data.prepare ~/my_cases --labels brats2023 --resolution 96 --cache /fast/disk

exit codes: 0 done, 2 wrong option or wrong input (one line says which file), 130 interrupted (run again to go on)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, check, build, summarise. Returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
        check_resolution(options.resolution)
        cases, schema = brats.find_cases(options.data, labels=options.labels, require_truth=False)
        print(f"{len(cases)} cases, labels of {schema.name}, {sum(c.truth is None for c in cases)} without truth")
        with _bar() as progress:
            built = cache.build(
                cases,
                schema,
                options.resolution,
                directory=options.cache,
                n4=options.n4,
                workers=options.workers,
                progress=progress,
            )
    except DataError as error:
        print(f"data.prepare: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("data.prepare: interrupted; what is done stays, run again to go on", file=sys.stderr)
        return 130
    print(f"cache: {built.directory}")
    return 0


class _Parser(argparse.ArgumentParser):
    """One line for a wrong option, where argparse prints its usage as well."""

    def error(self, message: str) -> NoReturn:
        raise DataError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m data.prepare",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", metavar="DATA", help="folder of the data set")
    parser.add_argument(
        "--resolution", type=int, default=192, metavar="N", help="edge of the cube, a multiple of 16 (default: 192)"
    )
    parser.add_argument(
        "--labels",
        metavar="SCHEMA",
        help=f"what the labels mean, where the names of the files do not tell: {', '.join(SCHEMAS)}",
    )
    parser.add_argument("--n4", action="store_true", help="correct the bias field of t1, t1ce and t2 first (slow)")
    parser.add_argument(
        "--cache", metavar="DIR", help="where caches lie (default: cubes/ under $LMS3D_CACHE or ~/.cache/lms3d)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core, at most 16)")
    return parser


@contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with RichProgress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


if __name__ == "__main__":
    sys.exit(main())
