"""`python -m lms3d.data.prepare`: checks a data set and builds its training cache ahead of time."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from lms3d.common import extras, permissions, program
from lms3d.common.disk import cache_directory
from lms3d.data import pseudonyms
from lms3d.data.errors import DataError, in_words
from lms3d.data.words import counted

try:
    from lms3d.data.brats import layouts
    from lms3d.data.brats.preprocess import Preprocessing, cube
    from lms3d.data.brats.schema import SCHEMAS
    from lms3d.data.chest_xray import collection as chest_xray
    from lms3d.data.chest_xray import shards
    from lms3d.data.files import Progress
    from lms3d.data.segmentation import choice
    from lms3d.data.segmentation import layouts as segmentation
    from lms3d.data.segmentation.grid import Grid
    from lms3d.data.volumes import cache, fingerprint
    from lms3d.data.volumes import preprocess as volumes
    from lms3d.data.volumes.case import Case
    from lms3d.data.volumes.data_set import DataSet
    from lms3d.data.volumes.geometry import Shape
except ModuleNotFoundError as error:
    missing = extras.advice(error)
    if missing is None or __name__ != "__main__":  # `lms3d prepare` says it itself
        raise
    print(f"data.prepare: error: {missing}", file=sys.stderr)
    sys.exit(DataError.exit_code)

_DESCRIPTION = """\
Check a data set and build its training cache. Training does the same by itself; do it ahead to find bad files early, or
on another machine. DATA is the folder of an unpacked data set:

BraTS 2017 to 2025, TCIA (Pre-operative TCGA), Task01_BrainTumour of the Medical Segmentation Decathlon, or a manifest. Every
case is examined first: the size of its brain, voxels, intensities, labels, and modalities that may be exchanged. Then it is
cropped to the brain, resized to a cube (or cut to a box of 1 mm voxels, which resizes nothing) and stored. Folders are
searched to any depth.

Any organ, for --task segmentation: a raw folder of nnU-Net, a task of the Decathlon, or a manifest that names channels and
labels. Volumes become cubes, boxes of a spacing, or keep their own shapes at a spacing.

ChestX-ray14, recognised by its Data_Entry_2017.csv. Every image is read, made grey and square, and stored in TFRecord shards
of 256, split by patient into training, validation and test (by the official lists, if the data set has them)."""

_EPILOG = """\
examples:
  python -m lms3d.data.prepare ~/MICCAI_BraTS2020_TrainingData --resolution 144
  python -m lms3d.data.prepare ~/MICCAI_BraTS2020_TrainingData --examine
  python -m lms3d.data.prepare ~/MICCAI_BraTS2020_TrainingData --box 160x192x160 --skip-bad
  python -m lms3d.data.prepare ~/nnUNet_raw/Dataset017_Liver --spacing median
  python -m lms3d.data.prepare ~/my_cases --labels brats2023 --resolution 96 --cache /fast/disk
  python -m lms3d.data.prepare ~/ChestX-ray14 --resolution 224 --skip-bad

exit codes: 0 done, 2 wrong option or wrong input (one line says which file), 130 interrupted (run again to go on)"""

_CUBE, _SQUARE = 192, 224


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks a data set and builds its cache. Returns the exit code."""
    umask = os.umask(permissions.PRIVATE)
    try:
        os.umask(_chosen_umask())
        options = _parser().parse_args(arguments)
        pseudonyms.start(options.anonymous and not options.pseudonyms)
        if options.pseudonyms:
            return _list_pseudonyms(options)
        directory = _kind_of(options)(options)
    except (DataError, OSError) as error:
        reported = error if isinstance(error, DataError) else in_words(error)
        if reported is None:
            raise
        print(f"data.prepare: error: {reported}", file=sys.stderr)
        return reported.exit_code
    except KeyboardInterrupt:
        print("data.prepare: interrupted; what is done stays, run again to go on", file=sys.stderr)
        return 130
    finally:
        os.umask(umask)
    _say(f"cache: {directory}")
    if options.cache and not options.examine:
        _say(f"trainings find it with LMS3D_CACHE={options.cache.absolute()}")
    return 0


def _chosen_umask() -> int:
    try:
        return permissions.umask()
    except ValueError as error:
        raise DataError(str(error)) from None


def _kind_of(options: argparse.Namespace) -> Callable[[argparse.Namespace], Path]:
    """What prepares this kind of data."""
    if chest_xray.is_chest_xray(options.data):
        return _prepare_images
    task = options.task or ("segmentation" if segmentation.is_data_set(options.data) else "brats")
    return {"brats": _prepare_brains, "segmentation": _prepare_organs}[task]


def _say(text: str) -> None:
    """Prints a line. Hours of work must not end because stdout is gone, or because a name is no UTF-8."""
    try:
        print(text.encode(errors="backslashreplace").decode(), flush=True)
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # the rest of the buffer is discarded, too
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        with contextlib.suppress(OSError):
            print(f"data.prepare: stdout: {error.strerror}; going on without it", file=sys.stderr)


def _list_pseudonyms(options: argparse.Namespace) -> int:
    """Lists pseudonyms and names, for people who have the data."""
    if chest_xray.is_chest_xray(options.data):
        names = [("image", Path(name).stem) for name in chest_xray.find_images(options.data).images]
    else:
        names = [
            ("case", case.id)
            for case in (
                segmentation.find(options.data, require_truth=False).data_set.cases
                if _kind_of(options) is _prepare_organs
                else layouts.find_cases(
                    options.data, labels=options.labels, require_truth=False, require_complete=False
                ).cases
            )
        ]
    for kind, name in names:
        _say(f"{pseudonyms.pseudonym(name, kind)}  {name}")
    return 0


def _prepare_brains(options: argparse.Namespace) -> Path:
    """Examines a brain tumour data set, then makes its volumes. Returns their folder."""
    _refuse(options, "spacing", "brain scans", "a data set for --task segmentation")
    preprocessing = _preprocessing(options)
    data_set = layouts.find_cases(options.data, labels=options.labels, require_truth=False, require_complete=False)
    return _prepare_volumes(options, data_set, preprocessing, brains=True)


def _prepare_organs(options: argparse.Namespace) -> Path:
    """Examines a data set of any organ, then makes its volumes. Returns their folder."""
    for name in ("labels", "n4"):
        _refuse(options, name, "a data set that says what its labels and channels are", "brain scans")
    found = segmentation.find(options.data, require_truth=False)
    _say(found.description.in_words)
    return _prepare_volumes(options, found.data_set, _grid(options, found.data_set.cases), brains=False)


def _prepare_volumes(
    options: argparse.Namespace, data_set: DataSet, preprocessing: volumes.Preprocessing, *, brains: bool
) -> Path:
    """Examines the cases of a data set, then makes their volumes. Returns their folder."""
    cases, schema = data_set
    without = sum(case.truth is None for case in cases)
    _say(f"{counted(len(cases), 'case')} of {data_set.layout}, labels of {schema.name}, {without} without truth")
    if data_set.unused:
        stray = counted(len(data_set.unused), "file that belongs", "files that belong")
        _say(f"not used: {stray} to no case, such as {data_set.unused[0]}")
    with _bar() as progress:
        table = fingerprint.examine(cases, schema, directory=options.cache, workers=options.workers, progress=progress)
    _say(fingerprint.as_text(table, brains=brains))
    problems = [problem for problem in table["problem"] if problem]
    if problems and not options.skip_bad:
        more = f" ({counted(len(problems), 'case')} cannot be used; --skip-bad leaves such cases out)"
        raise DataError(problems[0] + more)
    if options.examine:
        if not brains:
            _propose(options)
        return options.cache or cache_directory()
    with _bar() as progress:
        built = cache.build(
            cases, schema, preprocessing, directory=_below(options.cache, "cubes"),
            skip_bad=options.skip_bad, workers=options.workers, progress=progress,
        )  # fmt: skip
    if built.skipped:
        _say(f"skipped: {counted(len(built.skipped), 'case')}, listed in {built.directory / 'skipped.csv'}")
    return built.directory


def _propose(options: argparse.Namespace) -> None:
    """Prints the grid and the command that suit the data. It plans with TensorFlow, which this process does without."""
    limit = ["--memory-limit", options.memory_limit] if options.memory_limit else []
    command = [sys.executable, "-m", "lms3d.tasks.segmentation.proposal", str(options.data), *limit]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise DataError("--examine: found no proposal of a grid; expected one; the line above says why")
    _say(done.stdout.rstrip())


def _below(cache_root: Path | None, kind: str) -> Path | None:
    """The folder in which training looks for caches of a kind, if LMS3D_CACHE names that root."""
    return cache_root / kind if cache_root else None


def _preprocessing(options: argparse.Namespace) -> Preprocessing:
    if options.box is not None and options.resolution is not None:
        raise DataError("--box: found --resolution, too; expected one of them; leave one out")
    n4, anti_alias = bool(options.n4), options.anti_alias is not False
    if options.box is None:
        side = _CUBE if options.resolution is None else options.resolution
        return cube(side, n4=n4, anti_alias=anti_alias)
    return Preprocessing(shape=_sides(options.box), stretched=False, n4=n4, anti_alias=anti_alias)


def _grid(options: argparse.Namespace, cases: Sequence[Case]) -> Grid:
    """The grid of `lms3d.train --task segmentation` with the same options."""
    if options.resolution is not None and (options.box or options.spacing):
        raise DataError("--resolution: found --box or --spacing, too; expected one grid; leave one out")
    box = None if options.box is None else _sides(options.box)
    anti_alias = options.anti_alias is not False
    return choice.grid(cases, options.resolution, box, options.spacing, anti_alias=anti_alias)


def _sides(text: str) -> Shape:
    sides = [int(side) for side in text.lower().split("x") if side.isdecimal()]
    if len(sides) != 3 or text.lower().count("x") != 2:
        raise DataError(f"--box: found {text!r}; expected three sides; write 160x192x160")
    a, b, c = sides
    return a, b, c


def _prepare_images(options: argparse.Namespace) -> Path:
    """Makes the shards of ChestX-ray14. Returns their folder."""
    for name in ("labels", "n4", "anti_alias", "box", "spacing", "examine"):
        _refuse(options, name, "chest X-rays", "brain scans")
    resolution = _SQUARE if options.resolution is None else options.resolution
    shards.check_resolution(resolution)
    collection = chest_xray.find_images(options.data)
    _say(f"{counted(len(collection.images), 'image')}, {'no' if collection.test is None else 'official'} test list")
    with _bar() as progress:
        built = shards.build(
            collection, resolution, directory=_below(options.cache, "images"), skip_bad=options.skip_bad, workers=options.workers,
            progress=progress,
        )  # fmt: skip
    if built.skipped and not options.skip_bad:
        raise DataError(
            f"{built.directory}: found {counted(len(built.skipped), 'image')} that an earlier --skip-bad left out; expected all "
            "of them; mend those in its skipped.csv and remove the folder, or say --skip-bad again"
        )
    _say(", ".join(f"{name}: {len(part)}" for name, part in built.parts.items()))
    if built.skipped:
        _say(f"skipped: {counted(len(built.skipped), 'image')}, listed in {built.directory / 'skipped.csv'}")
    return built.directory


def _refuse(options: argparse.Namespace, name: str, found: str, wanted: str) -> None:
    """DataError if the user gave an option for the other kind of data."""
    if (value := getattr(options, name)) is not None:
        option = ("--no-" if value is False else "--") + name.replace("_", "-")
        raise DataError(f"{option}: found {found} in {options.data}; expected {wanted}; leave {option} out")


def _place(text: str) -> Path:
    """The path of a file or folder. "" is refused: it comes from a shell variable that was not set."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path; name a file or a folder")
    return Path(text).expanduser()


class _Parser(argparse.ArgumentParser):
    """A parser that reports a wrong option in one line, without the usage that argparse would print."""

    def error(self, message: str) -> NoReturn:
        raise DataError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog=program.started_as("lms3d.data.prepare"), description=_DESCRIPTION, epilog=_EPILOG, formatter_class=layout
    )
    add = parser.add_argument
    add("--version", action="version", version=program.version(), help="print the version of lms3d and exit")
    add("data", type=_place, metavar="DATA", help="folder of the data set, or a manifest of scans (.csv, .json)")
    edge = f"edge of the cube, a multiple of 16 (default: {_CUBE}), or of the square, 32 to 1024 (default: {_SQUARE})"
    kinds = "what the data are for (default: segmentation if they name their channels, else brats)"
    add("--task", choices=("brats", "segmentation"), help=kinds)
    add("--resolution", type=int, metavar="N", help=edge)
    labels = f"what the labels mean, if the names of the files do not say: {', '.join(SCHEMAS)}"
    add("--labels", metavar="SCHEMA", help=labels)
    corrected = "correct the bias field of t1, t1ce and t2, once cropped (slow; default: off)"
    add("--n4", action="store_true", default=None, help=corrected)
    add(
        "--box",
        metavar="XxYxZ",
        help="voxels of 1 mm around the brain, or of --spacing, such as 160x192x160, instead of a cube",
    )
    smooth = "before volumes are made smaller, remove detail that they cannot hold (default: on)"
    sized = f"size of a voxel in mm, or {choice.MEDIAN}, for --task segmentation (default: {choice.MEDIAN} with --box, else a cube)"
    add("--spacing", metavar="XxYxZ", help=sized)
    add("--anti-alias", action=argparse.BooleanOptionalAction, help=smooth)
    alone = "only examine volumes: print sizes, spacings, labels, intensities; for --task segmentation also a fitting command"
    add("--examine", action="store_true", default=None, help=alone)
    most = (
        "with --examine and --task segmentation: the memory for which a grid is proposed (default: what the device has)"
    )
    add("--memory-limit", metavar="SIZE", help=most)
    skip = "leave out cases and images that cannot be used, and list them in skipped.csv"
    add("--skip-bad", action="store_true", help=skip)
    hidden = "print pseudonyms instead of the names of cases, patients and images in all messages (default: off)"
    add("--anonymous", action="store_true", help=hidden)
    whose = (
        "only list the pseudonyms of --anonymous on this machine with the names behind them; do not pass the list on"
    )
    add("--pseudonyms", action="store_true", help=whose)
    folder = "folder of the caches, cubes/ or images/; then train with LMS3D_CACHE=DIR (default: $LMS3D_CACHE or ~/.cache/lms3d)"
    add("--cache", type=_place, metavar="DIR", help=folder)
    add("--workers", type=int, metavar="N", help="processes (default: one per core, at most 16)")
    return parser


@contextmanager
def _bar() -> Iterator[Progress]:
    """A block with a progress bar that shows the time left; yields its `Progress`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with RichProgress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


if __name__ == "__main__":
    sys.exit(main())
