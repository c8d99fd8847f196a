"""The label values of predicted maps: the data set's, if the network knows its labels; otherwise the values that it learnt.

A network that has learnt necrosis, oedema and enhancing tumour from 2021, whose enhancing tumour is 4, writes 3 for the cases of
2023, as their truth does. A package says what its network has learnt, and so does config.json. A run that is older than this
entry is assumed to have learnt the labels of the data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lms3d.data.brats import layouts
from lms3d.data.brats.definition import restored
from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.errors import DataError
from lms3d.data.volumes.data_set import DataSet
from lms3d.data.volumes.labels import LabelSchema
from lms3d.errors import InputError
from lms3d.tasks.task import TrainedRun


def learnt(run: TrainedRun) -> LabelSchema | None:
    """The schema that a run was trained with; None if its config.json does not say."""
    if "labels" not in run.content:
        return None
    return restored(run.content["labels"], where=str(run.run_dir))


def find_cases(folder: Path, labels: str | None, run: TrainedRun) -> DataSet:
    """The cases of a folder. If neither file names nor `labels` say what label values mean, they mean what the run has learnt."""
    own = learnt(run)
    try:
        return layouts.find_cases(folder, labels=labels, require_truth=False, require_complete=False)
    except DataError:
        if labels is not None or own is None:
            raise
        return layouts.find_cases(folder, labels=own.name, require_truth=False, require_complete=False)


def written(runs: Sequence[TrainedRun], of_data: LabelSchema) -> LabelSchema:
    """The schema of the label maps to write. InputError if the outputs of two runs mean different things."""
    known = [(run, schema) for run in runs if (schema := learnt(run)) is not None]
    for run, schema in known[1:]:
        first, expected = known[0]
        if not _alike(schema, expected):
            raise InputError(
                f"{run.run_dir}: found labels of {schema.name}; expected {expected.name} as in {first.run_dir}; average runs that "
                "learned the same"
            )
    return of_data if all(_alike(schema, of_data) for _, schema in known) else known[0][1]


def _alike(one: LabelSchema, other: LabelSchema) -> bool:
    """Whether output channels of the two mean the same: the schemas are equal except for the name, or both are published with the
    same nested regions."""
    if (one.labels, one.learnt, one.regions, one.nested) == (other.labels, other.learnt, other.regions, other.nested):
        return True
    published = {one.name, other.name} <= set(SCHEMAS) and len(one.learnt) == len(other.learnt)
    return published and [region for region, _ in one.nested] == [region for region, _ in other.nested]
