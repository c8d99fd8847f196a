"""Which numbers predicted label maps have: those of the data set, where the network can say them; else those that it learnt.

A network that has learnt necrosis, oedema and enhancing tumour from 2021, where the last is 4, writes 3 for the cases of
2023, as their truth does. What it has learnt is told by packages, and by config.json of runs since they are there; of
earlier runs it is taken to be what the data set has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data.brats import layouts
from data.brats.definition import restored
from data.brats.layouts import DataSet
from data.brats.schema import SCHEMAS, LabelSchema
from data.errors import DataError
from lms3d.errors import InputError
from lms3d.tasks.task import TrainedRun


def learnt(run: TrainedRun) -> LabelSchema | None:
    """The schema that a run was trained with, where it says so."""
    if "labels" not in run.content:
        return None
    return restored(run.content["labels"], where=str(run.run_dir))


def find_cases(folder: Path, labels: str | None, run: TrainedRun) -> DataSet:
    """The cases of a folder. Where neither its names nor `labels` tell what labels mean, they mean what the run has learnt."""
    own = learnt(run)
    try:
        return layouts.find_cases(folder, labels=labels, require_truth=False, require_complete=False)
    except DataError:
        if labels is not None or own is None:
            raise
        return layouts.find_cases(folder, labels=own.name, require_truth=False, require_complete=False)


def written(runs: Sequence[TrainedRun], of_data: LabelSchema) -> LabelSchema:
    """The schema of the label maps. InputError if the outputs of two runs mean different things."""
    told = [(run, schema) for run in runs if (schema := learnt(run)) is not None]
    for run, schema in told[1:]:
        first, expected = told[0]
        if not _alike(schema, expected):
            raise InputError(
                f"{run.run_dir}: found labels of {schema.name}; expected {expected.name} as in {first.run_dir}; average runs that "
                "learned the same"
            )
    return of_data if all(_alike(schema, of_data) for _, schema in told) else told[0][1]


def _alike(one: LabelSchema, other: LabelSchema) -> bool:
    """Whether output channels of the two mean the same: equal but for the name, or published with the same nested regions."""
    if (one.labels, one.learnt, one.regions, one.nested) == (other.labels, other.learnt, other.regions, other.nested):
        return True
    published = {one.name, other.name} <= set(SCHEMAS) and len(one.learnt) == len(other.learnt)
    return published and [region for region, _ in one.nested] == [region for region, _ in other.nested]
