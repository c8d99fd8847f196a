"""Our predictions as a challenge asks for them: one folder with <case>.nii.gz, uint8, with the header of the case's images.

The files are written again from the native label maps. Shape, affine, qform and sform with their codes, and units are the input's;
label values are the data set's, whatever values the network learnt.

A folder holds one whole submission. It is made in a hidden folder inside, compared with the files that are there, then moved. Other
files are neither replaced nor removed: the submission is refused, so that it never contains a case of another run.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from lms3d import atomic_files
from lms3d.console import ProgressReport
from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.schema import schema_named
from lms3d.data.volumes import frame
from lms3d.data.volumes.geometry import Geometry
from lms3d.data.volumes.header import read_header
from lms3d.data.volumes.labels import LabelSchema
from lms3d.errors import InputError
from lms3d.tasks.claimed_folder import claimed
from lms3d.tasks.volumes import codings, job, label_maps
from lms3d.tasks.volumes.label_maps import Predictions

_UNFINISHED = ".unfinished"
_ADVICE = "expected an empty folder, or this very submission; empty it, or name another"


def write(
    predictions: Predictions, directory: Path, *, data: str | None = None, progress: ProgressReport
) -> list[Path]:
    """Writes every case of `predictions` into `directory`; returns the files. data: the new folder of a data set that was moved."""
    images = _images(predictions, data or predictions.data)
    written = [directory / f"{case}.nii.gz" for case in predictions.cases]
    with claimed(directory, "--submission"):
        _require_nothing_else(directory, [path.name for path in written])
        unfinished = directory / _UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that was killed
        try:
            _make(predictions, images, unfinished, progress)
            for path in written:
                _require_equal(unfinished / path.name, path)
            for path in written:
                with atomic_files.replacing(path) as partial:
                    (unfinished / path.name).rename(partial)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return written


def _images(predictions: Predictions, data: str) -> dict[str, Path]:
    """Case -> its first image. InputError or DataError if it is missing, or is not on the grid that was predicted."""
    cases, _ = find_cases(data, labels=predictions.schema_of_truth, require_truth=False, require_complete=False)
    images = {case.id: case.files[0] for case in cases}
    for case, geometry in predictions.cases.items():
        if case not in images:
            raise InputError(
                f"{data}: found no case {case}; expected the images that were predicted; name their folder with --truth"
            )
        predicted = np.array(Geometry.from_json(geometry).affine)
        frame.require_same(images[case], read_header(images[case]).affine, predicted, "the images that were predicted")
    return images


def _require_nothing_else(directory: Path, names: Iterable[str]) -> None:
    """InputError if the folder shows a file that is none of these."""
    others = sorted({one.name for one in directory.iterdir() if not one.name.startswith(".")} - set(names))
    if others:
        raise InputError(f"--submission {directory}: found {others[0]}, which is none of its cases; {_ADVICE}")


def _require_equal(new: Path, old: Path) -> None:
    """InputError if there is an `old` file with another content than the new one."""
    if old.exists() and not filecmp.cmp(new, old, shallow=False):
        raise InputError(f"--submission {old.parent}: found another {old.name} than it would write; {_ADVICE}")


def _make(predictions: Predictions, images: Mapping[str, Path], folder: Path, progress: ProgressReport) -> None:
    """Writes all label maps into a folder of their own."""
    ours, theirs = schema_named(predictions.schema), schema_named(predictions.schema_of_truth)
    for done, (case, geometry) in enumerate(predictions.cases.items()):
        progress(done, len(predictions.cases), "writing the submission")
        labels = job.own_labels(predictions.native(case), Geometry.from_json(geometry))
        label_maps.write_like(_translated(labels, ours, theirs), images[case], folder / f"{case}.nii.gz")
    progress(len(predictions.cases), len(predictions.cases), "writing the submission")


def _translated(labels: np.ndarray, ours: LabelSchema, theirs: LabelSchema) -> np.ndarray:
    """One of our label maps with the data set's values for the same tissues. InputError if a tissue in it has no such value."""
    if ours.name == theirs.name:
        return labels
    found = np.zeros_like(labels)
    for name, value in ours.labels.items():
        there = labels == value
        values = codings.values_of(theirs, name) or ()
        if len(values) == 1:
            found[there] = values[0]
        elif there.any():
            raise InputError(
                f"--submission: the network wrote labels of {ours.name}; {theirs.name}, which the data set has, knows no label for "
                f"{name}; train on labels of {theirs.name}"
            )
    return found
