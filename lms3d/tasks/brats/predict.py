"""`python -m lms3d.predict` for brain scans: how they are read, and what the outputs mean. See `lms3d.tasks.volumes.predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.data.brats.definition import described
from lms3d.data.brats.preprocess import Preprocessing
from lms3d.data.brats.schema import CHANNELS
from lms3d.data.phantoms import brains
from lms3d.data.volumes.data_set import DataSet
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.normalise import Normalisation
from lms3d.data.volumes.targets import Targets, targets_of
from lms3d.errors import InputError
from lms3d.tasks.brats import coding, package
from lms3d.tasks.brats.material import preprocessing
from lms3d.tasks.task import PredictRequest, TrainedRun
from lms3d.tasks.volumes import predict as volumes


def predict(request: PredictRequest) -> tuple[str, dict[str, str]]:
    """Segments the validation cases of the run, or every case of `request.data`."""
    return volumes.predict(request, BrainScans())


def sample(run: TrainedRun) -> tuple[str, np.ndarray]:
    """See `lms3d.tasks.task.Task.sample`."""
    return volumes.sample(run, BrainScans())


class BrainScans:
    """See `lms3d.tasks.volumes.predict.Reader`."""

    def require_alike(self, first: TrainedRun, other: TrainedRun) -> None:
        for name in ("task", "targets", "labels"):
            one, another = getattr(first.trained, name, None), getattr(other.trained, name, None)
            if one != another:
                raise InputError(
                    f"{other.run_dir}: found --{name} {another}; expected {one} as in {first.run_dir}; average runs that learned "
                    "the same"
                )

    def folder(self, request: PredictRequest) -> Path:
        folder = request.data or request.trained.data
        return folder or brains.write(brains.default_directory(), progress=request.progress)  # made again if it is gone

    def cases(self, folder: Path, request: PredictRequest, run: TrainedRun) -> DataSet:
        found = coding.find_cases(folder, request.labels or run.trained.labels, run)
        learnt = tuple(run.content.get("data", {}).get("modalities", CHANNELS))
        if found.modalities != learnt:
            raise InputError(
                f"{folder}: found {', '.join(found.modalities)}; expected {', '.join(learnt)} as {run.name} has learnt from; give "
                "data with these modalities, such as a manifest that leaves the others empty in every row"
            )
        return found

    def preprocessing(self, run: TrainedRun) -> Preprocessing:
        return preprocessing(run.trained)

    def normalisation(self, run: TrainedRun) -> Normalisation:
        try:
            return package.normalisation(run.content.get("normalisation"))
        except ValueError:
            raise InputError(
                f"{run.run_dir / 'config.json'}: found no normalisation; expected mean and std of the training images; "
                "train again"
            ) from None

    def targets(self, runs: Sequence[TrainedRun], of_data: LabelSchema) -> Targets:
        return targets_of(runs[0].trained.targets, coding.written(runs, of_data))

    def meaning(self, runs: Sequence[TrainedRun], targets: Targets) -> Mapping[str, Any]:
        return described(targets.schema)

    def tissues(self, targets: Targets) -> Sequence[Sequence[int]]:
        return [targets.schema.values_of("WT")]
