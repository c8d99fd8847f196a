"""What `lms3d.data.prepare` does: examines the cases of a data set, and builds its cache."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lms3d.common.disk import cache_directory
from lms3d.data import pseudonyms
from lms3d.data.brats import layouts
from lms3d.data.brats.preprocess import Preprocessing, cube
from lms3d.data.chest_xray import collection as chest_xray
from lms3d.data.chest_xray import shards
from lms3d.data.errors import DataError
from lms3d.data.files import Progress
from lms3d.data.prepare_options import CUBE, SQUARE
from lms3d.data.segmentation import choice
from lms3d.data.segmentation import layouts as segmentation
from lms3d.data.segmentation.grid import Grid
from lms3d.data.volumes import cache, fingerprint
from lms3d.data.volumes import preprocess as volumes
from lms3d.data.volumes.case import Case
from lms3d.data.volumes.data_set import DataSet
from lms3d.data.volumes.geometry import Shape
from lms3d.data.words import counted


def run(options: argparse.Namespace) -> None:
    """Checks a data set and builds its cache, or lists pseudonyms. DataError for data or options that cannot be used."""
    if options.pseudonyms:
        _list_pseudonyms(options)
        return
    directory = _kind_of(options)(options)
    _say(f"cache: {directory}")
    if options.cache and not options.examine:
        _say(f"trainings find it with LMS3D_CACHE={options.cache.absolute()}")


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


def _list_pseudonyms(options: argparse.Namespace) -> None:
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
    cases, schema = data_set.for_training() if options.skip_bad else data_set
    cache.require_free_names(cases)  # before an hour is spent on examining them
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
        side = CUBE if options.resolution is None else options.resolution
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
    resolution = SQUARE if options.resolution is None else options.resolution
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
