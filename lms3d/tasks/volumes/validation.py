"""The validation of a run on patches: each case whole, by the windows of its prediction (`lms3d.tasks.streaming.segment`).

    network --windows--> DiskMap --slabs--> sums of the loss and of each Dice --> their means over the cases

A patch around the true tumour would not show what the network finds elsewhere. The loss is that of `compile` on the whole volume;
with --deep-supervision it is that of the finest head alone, which is the one that predicts, so that no more is kept than for a
prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lms3d.data.volumes import patches, pipeline
from lms3d.data.volumes.geometry import Shape
from lms3d.data.volumes.planes import beyond, image_planes
from lms3d.data.volumes.targets import IGNORED, Targets
from lms3d.data.words import counted
from lms3d.scoring import parts
from lms3d.scoring.keras_dice import RegionDice
from lms3d.tasks.streaming.disk_map import DiskMap
from lms3d.tasks.streaming.segment import probabilities
from lms3d.tasks.streaming.volumes import slabs
from lms3d.tasks.volumes.material import VolumeMaterial
from lms3d.training.validation import OwnValidation, Predict


@dataclass(frozen=True, kw_only=True)
class SlidingValidation(OwnValidation):
    """The validation of these cases."""

    material: VolumeMaterial
    case_ids: Sequence[str]
    scratch: Path
    """The folder for the probabilities of a case. StorageError if its disk is too full."""
    loss: str
    """Its name; see `lms3d.scoring.masked`."""
    metrics: Sequence[RegionDice]

    ranks: int = 1
    """How many ranks validate, each its own cases."""

    def __post_init__(self) -> None:
        pipeline.require_truth(self.material.cache, self.case_ids)

    @property
    def batches(self) -> int:
        return sum(_windows(self.material, case_id) for case_id in self.case_ids)

    @property
    def in_words(self) -> str:
        volumes = counted(len(self.case_ids), "whole volume") + (" a rank" if self.ranks > 1 else "")
        patch = "x".join(map(str, _patch(self.material)))
        return f"Each epoch ends with a validation of {volumes}, in {counted(self.batches, 'window')} of {patch}"

    def scores(self, predict: Predict) -> dict[str, float]:
        found = [self._of_case(predict, case_id) for case_id in self.case_ids]
        return {name: float(np.mean([one[name] for one in found])) for name in found[0]}

    def _of_case(self, predict: Predict, case_id: str) -> dict[str, float]:
        material, cache = self.material, self.material.cache
        targets, truth = material.targets, cache.truth(case_id)
        assert truth is not None, "`__post_init__` checks it"
        ignored = None if targets.schema.ignore is None else IGNORED
        loss = parts.LossBySums(name=self.loss, classes=targets.kind == "classes", ignored=ignored)
        with probabilities(
            predict, image_planes(material.normalisation, cache, case_id), cache.shape_of(case_id),
            channels=len(targets.names), patch=_patch(material), scratch=self.scratch,
            beyond=partial(beyond, material.normalisation, cache, case_id),
        ) as found:  # fmt: skip
            return parts.scores(_parts(targets, truth, found), loss, self.metrics)


def mean_windows(material: VolumeMaterial) -> float:
    """The mean number of windows of a validation case."""
    return float(np.mean([_windows(material, case_id) for case_id in material.split.validation]))


def _windows(material: VolumeMaterial, case_id: str) -> int:
    return patches.window_count(material.cache.shape_of(case_id), _patch(material))


def _patch(material: VolumeMaterial) -> Shape:
    assert material.shown.patch is not None, "a run on patches"
    return material.shown.patch


def _parts(targets: Targets, truth: np.ndarray, found: DiskMap) -> Iterator[parts.Part]:
    """Slabs of the truth, as channels, and of the probabilities."""
    a, b, _ = found.shape
    for start, stop in slabs(found):
        yield targets.to_channels(truth[:, :, start:stop]), found.read((0, 0, start), (a, b, stop))
