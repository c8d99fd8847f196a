"""`python -m lms3d.predict` for any organ: how volumes are read, and what the outputs mean. See `lms3d.tasks.volumes.predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.data.phantoms import abdomens
from lms3d.data.segmentation import layouts
from lms3d.data.segmentation.description import Description
from lms3d.data.segmentation.grid import Grid
from lms3d.data.segmentation.intensities import ByChannel
from lms3d.data.volumes.data_set import DataSet
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.normalise import Normalisation
from lms3d.data.volumes.preprocess import Preprocessing
from lms3d.data.volumes.targets import Targets
from lms3d.errors import InputError
from lms3d.tasks.segmentation.facts import restored
from lms3d.tasks.task import PredictRequest, TrainedRun, refuse
from lms3d.tasks.volumes import predict as volumes


def predict(request: PredictRequest) -> tuple[str, dict[str, str]]:
    """Segments the validation cases of the run, or every case of `request.data`."""
    refuse({"--labels": request.labels}, "is for brain tumours; the labels here are those that the run has learnt")
    return volumes.predict(request, Organs())


def sample(run: TrainedRun) -> tuple[str, np.ndarray]:
    """See `lms3d.tasks.task.Task.sample`."""
    return volumes.sample(run, Organs())


class Organs:
    """See `lms3d.tasks.volumes.predict.Reader`."""

    def require_alike(self, first: TrainedRun, other: TrainedRun) -> None:
        one, another = _described(first), _described(other)
        if first.trained.task != other.trained.task or _learnt(one) != _learnt(another):
            raise InputError(
                f"{other.run_dir}: found labels {', '.join(another.targets.names)}; expected {', '.join(one.targets.names)} as in "
                f"{first.run_dir}; average runs that learned the same"
            )

    def folder(self, request: PredictRequest) -> Path:
        folder = request.data or request.trained.data
        return folder or abdomens.write(abdomens.default_directory(), progress=request.progress)

    def cases(self, folder: Path, request: PredictRequest, run: TrainedRun) -> DataSet:
        described = _described(run)
        part = "all" if request.data else "training"
        found = layouts.find(folder, like=described, part=part, require_truth=False)
        channels = found.description.channels
        if channels != described.channels:
            raise InputError(
                f"{folder}: found {', '.join(channels)}; expected {', '.join(described.channels)} as {run.name} has learnt from; "
                "give data with these channels"
            )
        return found.data_set

    def preprocessing(self, run: TrainedRun) -> Preprocessing:
        return Grid.from_json(_of(run, "preprocessing"))

    def normalisation(self, run: TrainedRun) -> Normalisation:
        return ByChannel.from_json(_of(run, "normalisation"))

    def targets(self, runs: Sequence[TrainedRun], of_data: LabelSchema) -> Targets:
        return _described(runs[0]).targets

    def meaning(self, runs: Sequence[TrainedRun], targets: Targets) -> Mapping[str, Any]:
        return _described(runs[0]).to_json()

    def tissues(self, targets: Targets) -> Sequence[Sequence[int]]:
        return [(value,) for value in targets.schema.values if value]


def _learnt(described: Description) -> tuple[object, ...]:
    """What two runs must have in common if their outputs are averaged."""
    return described.channels, described.targets.kind, described.schema.labels, described.schema.nested


def _described(run: TrainedRun) -> Description:
    return restored(run.content, str(run.run_dir)).description


def _of(run: TrainedRun, name: str) -> Any:
    if name not in run.content:
        raise InputError(
            f"{run.run_dir / 'config.json'}: found no {name}; expected what lms3d.train writes; train again"
        )
    return run.content[name]
