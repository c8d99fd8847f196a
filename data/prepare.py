"""`python -m data.prepare`: check a data set and build its training cache ahead of time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from data.brats import cache, layouts
from data.brats.preprocess import check_resolution
from data.brats.schema import SCHEMAS
from data.chest_xray import collection as chest_xray
from data.chest_xray import shards
from data.errors import DataError
from data.files import Progress

_DESCRIPTION = """\
Check a data set and build its training cache. Training does the same by itself; do it ahead to find bad files early or
on another machine. DATA is the folder of an unpacked data set:

BraTS 2017-2021, 2023, 2024, TCIA (Pre-operative TCGA), or Task01_BrainTumour of the Medical Segmentation Decathlon: every
case is read, cropped to the brain, resized to a cube and stored. Any depth of folders is searched.

ChestX-ray14, known by its Data_Entry_2017.csv: every image is read, made grey and square, and stored in TFRecord shards
of 256, split by patient into training, validation and test (the official lists are kept where they are there)."""

_EPILOG = """\
examples:
  python -m data.prepare ~/MICCAI_BraTS2020_TrainingData --resolution 144
  python -m data.prepare ~/my_cases --labels brats2023 --resolution 96 --cache /fast/disk
  python -m data.prepare ~/ChestX-ray14 --resolution 224 --skip-bad

exit codes: 0 done, 2 wrong option or wrong input (one line says which file), 130 interrupted (run again to go on)"""

_CUBE, _SQUARE = 192, 224


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, check, build, summarise. Returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
        prepare = _prepare_images if chest_xray.is_chest_xray(options.data) else _prepare_cubes
        directory = prepare(options)
    except DataError as error:
        print(f"data.prepare: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("data.prepare: interrupted; what is done stays, run again to go on", file=sys.stderr)
        return 130
    print(f"cache: {directory}")
    return 0


def _prepare_cubes(options: argparse.Namespace) -> Path:
    """Make the cubes of a brain tumour data set; returns their folder."""
    _refuse(options, "skip_bad", "brain scans", "ChestX-ray14")
    resolution = _CUBE if options.resolution is None else options.resolution
    check_resolution(resolution)
    cases, schema = layouts.find_cases(options.data, labels=options.labels, require_truth=False)
    print(f"{len(cases)} cases, labels of {schema.name}, {sum(c.truth is None for c in cases)} without truth")
    with _bar() as progress:
        built = cache.build(
            cases, schema, resolution, directory=options.cache, n4=options.n4, workers=options.workers,
            progress=progress,
        )  # fmt: skip
    return built.directory


def _prepare_images(options: argparse.Namespace) -> Path:
    """Make the shards of ChestX-ray14; returns their folder."""
    _refuse(options, "labels", "chest X-rays", "brain scans")
    _refuse(options, "n4", "chest X-rays", "brain scans")
    resolution = _SQUARE if options.resolution is None else options.resolution
    shards.check_resolution(resolution)
    collection = chest_xray.find_images(options.data)
    print(f"{len(collection.images)} images, {'no' if collection.test is None else 'official'} test list")
    with _bar() as progress:
        built = shards.build(
            collection, resolution, directory=options.cache, skip_bad=options.skip_bad, workers=options.workers,
            progress=progress,
        )  # fmt: skip
    if built.skipped and not options.skip_bad:
        raise DataError(
            f"{built.directory}: found {len(built.skipped)} images that an earlier --skip-bad left out; expected all "
            "of them; mend those in its skipped.csv and remove the folder, or say --skip-bad again"
        )
    print(", ".join(f"{name}: {len(part)}" for name, part in built.parts.items()))
    if built.skipped:
        print(f"skipped: {len(built.skipped)} images, listed in {built.directory / 'skipped.csv'}")
    return built.directory


def _refuse(options: argparse.Namespace, name: str, found: str, wanted: str) -> None:
    """DataError when an option of the other kind of data was given."""
    if getattr(options, name):
        option = "--" + name.replace("_", "-")
        raise DataError(f"{option}: found {found} in {options.data}; expected {wanted}; leave {option} out")


class _Parser(argparse.ArgumentParser):
    """One line for a wrong option, where argparse prints its usage as well."""

    def error(self, message: str) -> NoReturn:
        raise DataError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="python -m data.prepare", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=layout)
    add = parser.add_argument
    add("data", metavar="DATA", help="folder of the data set")
    edge = f"edge of the cube, a multiple of 16 (default: {_CUBE}), or of the square, 32 to 1024 (default: {_SQUARE})"
    add("--resolution", type=int, metavar="N", help=edge)
    labels = f"what the labels mean, where the names of the files do not tell: {', '.join(SCHEMAS)}"
    add("--labels", metavar="SCHEMA", help=labels)
    add(
        "--n4", action="store_true", help="correct the bias field of t1, t1ce and t2, once cropped (slow; default: off)"
    )
    skip = "leave out chest X-rays that are not sound, and list them in skipped.csv"
    add("--skip-bad", action="store_true", help=skip)
    folder = "where caches lie (default: cubes/ or images/ under $LMS3D_CACHE or ~/.cache/lms3d)"
    add("--cache", metavar="DIR", help=folder)
    add("--workers", type=int, metavar="N", help="processes (default: one per core, at most 16)")
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
