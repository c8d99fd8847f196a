"""`python -m lms3d.evaluate` for any organ: Dice, HD95 and NSD of every class or region, also of label maps of other programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lms3d.data.errors import DataError
from lms3d.data.files import read_json
from lms3d.data.segmentation import description, layouts
from lms3d.data.segmentation.description import Description
from lms3d.data.segmentation.layouts import DESCRIPTION
from lms3d.data.volumes.case import Case
from lms3d.errors import InputError
from lms3d.scoring.rules import GENERAL
from lms3d.tasks.task import EvaluateRequest, Evaluation, refuse
from lms3d.tasks.volumes import evaluate as volumes
from lms3d.tasks.volumes import inputs, label_maps, plain_folders
from lms3d.tasks.volumes.inputs import Folder, Pools, ScoringPlan, Truth
from lms3d.tasks.volumes.label_maps import Predictions

_DRAWN = 3  # regions in pictures of the worst cases


def evaluate(request: EvaluateRequest) -> Evaluation:
    """Scores the cases that all `request.predictions` have; writes tables and box plots."""
    given = {
        "--labels": request.labels, "--scoring": request.scoring, "--prediction-labels": request.prediction_labels,
        "--submission": request.submission,
    }  # fmt: skip
    refuse(given, "is for brain tumours; the labels of these data are those of their dataset.json")
    return volumes.evaluate(request, volumes.folders_of(request), plan)


def plan(request: EvaluateRequest, folders: Sequence[Folder], pools: Pools | None = None) -> ScoringPlan:
    """A job for every case that all folders, or one folder of each pool, have predicted and that has a truth."""
    truth, described, note = _truth(folders, request.truth)
    schema = described.schema
    codings = [one.coding if isinstance(one, Predictions) else schema for one in folders]
    rules = replace(GENERAL, regions=tuple(schema.regions))
    return inputs.plan(
        folders,
        truth,
        codings,
        rules,
        channel=described.channels[0],
        drawn=rules.regions[:_DRAWN],
        notes=[note],
        pools=pools,
    )


def knows(truth: Path) -> bool:
    """Whether a folder holds a data set with a dataset.json, or label maps alone."""
    try:
        return bool(layouts.find(truth, part="all", require_truth=False).data_set.cases)
    except DataError:
        return truth.is_dir() and plain_folders.load(truth) is not None


def _truth(folders: Sequence[Folder], given: str | None) -> tuple[Truth, Description, str]:
    """The data set, what it says of itself, and a note if its labels have no names."""
    ours = next((one for one in folders if isinstance(one, Predictions)), None)
    if given is None and ours is None:
        raise InputError(
            f"--truth: found none, and {folders[0].directory} does not tell where its images come from; expected the data set "
            "with the true label maps; name its folder"
        )
    root = given or (ours.data if ours else "")
    like = Description.from_json(ours.meaning, where=str(ours.directory)) if ours and ours.meaning else None
    try:
        found = layouts.find(root, like=like, part="all", require_truth=False)
    except DataError:
        if not (alone := inputs.label_maps_alone(root)):
            raise
        described = like or _beside(root, folders)
        note = f"{root} has no {DESCRIPTION}: labels are called by their values; of brain tumours --labels says what these mean"
        note = "" if described else note
        described = described or _by_value(alone, folders)
        return Truth(root=root, cases=alone, schema=described.schema), described, note
    cases = {case.id: case for case in found.data_set.cases if case.truth is not None}
    return Truth(root=root, cases=cases, schema=found.description.schema), found.description, ""


def _beside(root: str, folders: Sequence[Folder]) -> Description | None:
    """The description beside label maps: of the truth, or the copy that nnU-Net puts beside its predictions. None without one."""
    places = [Path(root).expanduser(), Path(root).expanduser().parent, *(one.directory for one in folders)]
    path = next((place / DESCRIPTION for place in places if (place / DESCRIPTION).is_file()), None)
    if path is None:
        return None
    content = read_json(path, advice="restore it")
    return description.read(content, name=path.parent.resolve().name, where=str(path))


def _by_value(cases: Mapping[str, Case], folders: Sequence[Folder]) -> Description:
    """A description whose labels are the values that occur in the truth or in a prediction, called by these values."""
    files = [case.truth for case in cases.values() if case.truth is not None]
    files += [file for one in folders for file in inputs.cases_of(one, cases).values()]
    values = sorted(set[int]().union(*map(_values, files)) - {0})
    if not values:
        raise InputError(
            f"{files[0]}: found background alone, as in all other label maps; expected labels; check the folders"
        )
    labels = {str(value): value for value in values}
    return description.read({"channel_names": {"0": "image"}, "labels": labels}, name="labels", where=str(files[0]))


def _values(path: Path) -> Iterable[int]:
    """The values of a label map."""
    found: list[int] = np.flatnonzero(np.bincount(label_maps.read_labels(path)[0].ravel())).tolist()
    return found
