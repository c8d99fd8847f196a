"""Our predictions as a challenge wants them: one folder, <case>.nii.gz each, uint8, with the header of the case's own images.

Written again from the native label maps: shape, affine, qform and sform with their codes, and units as in the input; label values
are those of the data set, whatever the network learnt them as.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data.brats.layouts import find_cases
from data.brats.schema import LabelSchema, schema_named
from lms3d import files
from lms3d.console import Report as Progress
from lms3d.errors import InputError
from lms3d.tasks.brats import codings, label_maps
from lms3d.tasks.brats.label_maps import Predictions


def write(predictions: Predictions, directory: Path, *, data: str | None = None, progress: Progress) -> list[Path]:
    """Every case of `predictions` into `directory`; returns the files. data: the data set, where it has been moved."""
    files.writable_folder(directory, "--submission")
    cases, _ = find_cases(
        data or predictions.data, labels=predictions.schema_of_truth, require_truth=False, require_complete=False
    )
    images = {case.id: case.files[0] for case in cases}
    ours, theirs = schema_named(predictions.schema), schema_named(predictions.schema_of_truth)
    written = []
    for done, case in enumerate(predictions.cases):
        progress(done, len(predictions.cases), "writing the submission")
        if case not in images:
            raise InputError(
                f"{data or predictions.data}: found no case {case}; expected the images that were predicted; name their "
                "folder with --truth"
            )
        labels, _ = label_maps.read_labels(predictions.native(case))
        written.append(directory / f"{case}.nii.gz")
        label_maps.write_like(_translated(labels, ours, theirs), images[case], written[-1])
    progress(len(predictions.cases), len(predictions.cases), "writing the submission")
    return written


def _translated(labels: np.ndarray, ours: LabelSchema, theirs: LabelSchema) -> np.ndarray:
    """A label map of ours with the data set's values for the same tissues. InputError where it has none for one that is there."""
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
