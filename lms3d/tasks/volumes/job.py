"""Scores one case in a worker process: the job that it gets, and the rows that it returns. No TensorFlow: it starts in a second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.affines import voxel_sizes
from scipy import ndimage

from lms3d.data.volumes import frame
from lms3d.data.volumes.case import Case, load_truth
from lms3d.data.volumes.geometry import Geometry, Shape
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.resample import resize
from lms3d.data.volumes.targets import targets_of
from lms3d.errors import InputError
from lms3d.scoring import scores
from lms3d.scoring.columns import COLUMNS
from lms3d.scoring.components import around, margins
from lms3d.scoring.pair import CasePair, sizes_mm
from lms3d.scoring.rules import Rules
from lms3d.tasks.volumes import codings, label_maps, plain_maps

Row = dict[str, Any]
_CEILING_BYTES = 2**31  # the channels of the truth on the grid of the files, for ceilings


@dataclass(frozen=True, kw_only=True)
class Source:
    """The prediction of a case by one of the PREDICTIONS."""

    label: str
    fold: str = ""
    """The label of the folder, if it is one of a pool."""
    coding: LabelSchema
    """The meaning of its label values."""
    native: Path | None
    """The label map on the grid of the files; None if it is missing, which the rules penalise."""
    cube: Path | None = None
    """The label map on the network's grid; None if that is not compared."""
    geometry: Geometry | None = None
    """The place of the network's grid; None for a plain folder, whose maps are on the grid of the files alone."""
    shape: Shape | None = None
    """The shape of the network's grid; None if each case has its own."""
    targets: str = "labels"
    """What the network has learnt: a name in `lms3d.data.volumes.targets.KINDS`."""


@dataclass(frozen=True, kw_only=True)
class ScoringJob:
    """One case to score."""

    case: Case
    schema: LabelSchema
    """The schema of the truth. Not its name: a worker may not know the schema of a user."""
    rules: Rules
    sources: tuple[Source, ...]
    geometry: Geometry | None
    """The geometry of the images and of the grid in which all are compared; None if all folders are plain."""
    grid: Shape | None
    """The shape of the grid in which all are compared; None if they have none in common."""


def score_case(job: ScoringJob) -> list[Row]:
    """The rows of one case, for every source, in every space that it has."""
    return [row for source in job.sources for row in _Truth(job).score(source)]


class _Truth:
    """The truth of a case in every space, and the ceilings of resolutions. Each is worked out once."""

    def __init__(self, job: ScoringJob) -> None:
        self.job, self.rules, self.schema = job, job.rules, job.schema
        assert job.case.truth is not None  # a job is made of cases with a truth alone
        grid = job.geometry
        self.affine = np.array(grid.affine) if grid else plain_maps.affine_of(job.case.truth)
        self.spacing_mm = sizes_mm(voxel_sizes(self.affine))
        labels = (
            load_truth(job.case, self.schema, grid.shape, self.affine) if grid else load_truth(job.case, self.schema)
        )
        assert labels is not None
        self.labels = labels
        self.oriented = plain_maps.is_oriented(job.case.truth)
        self.ceilings: dict[tuple[object, ...], dict[str, dict[str, float]]] = {}

    def score(self, source: Source) -> Iterator[Row]:
        if source.native is None:
            yield from _missing(source.label, self.job.case.id, self._shown, self.rules)
            return
        for space, found in self._found(source):
            ceiling = self.ceiling(source, space) if self._has_ceiling(source) else {}
            fold = {"fold": source.fold} if source.fold else {}
            for row in self._rows(source, space, found, source.coding):
                yield row | fold | ceiling.get(row["region"], {})

    def _rows(self, source: Source, space: str, labels: np.ndarray, coding: LabelSchema) -> list[Row]:
        """The rows of a label map in `space`."""
        truth = self.labels if space == "native" else self.small
        pairs = _pairs(labels, coding, truth, self.schema, self.rules, self.spacing_mm)
        named = {"predictions": source.label, "case": self.job.case.id, "space": space}
        return [row for pair in pairs for row in scores.score(pair, **named)]

    def _found(self, source: Source) -> Iterator[tuple[str, np.ndarray]]:
        """(space, predicted label map), for each space that the source has."""
        assert source.native is not None
        if source.geometry is None:
            where = (self.labels.shape, self.affine)
            truth, oriented = str(self.job.case.truth), self.oriented
            yield "native", plain_maps.read(source.native, source.coding, *where, like=truth, like_oriented=oriented)
            return
        assert self.job.geometry is not None
        yield "native", own_labels(source.native, self.job.geometry)
        if source.cube is not None and self.job.grid is not None:
            small, _ = label_maps.read_labels(source.cube)
            yield "cube", resize(small, self.job.grid, "nearest")

    @cached_property
    def small(self) -> np.ndarray:
        """The truth on the grid in which all are compared."""
        assert self.job.geometry is not None
        assert self.job.grid is not None
        return resize(self.job.geometry.box.crop(self.labels), self.job.grid, "nearest")

    def _has_ceiling(self, source: Source) -> bool:
        """Whether the prediction comes from a grid that all cases share, and its channels fit into memory on that of the files."""
        if source.geometry is None or source.shape is None:
            return False
        channels = len(targets_of(source.targets, source.coding).names)
        return channels * self.labels.size * np.dtype(np.float32).itemsize <= _CEILING_BYTES

    def ceiling(self, source: Source, space: str) -> dict[str, dict[str, float]]:
        """Region -> the scores of the truth itself, once it has been resized to the network's grid and back as predictions are."""
        key = (source.geometry, source.shape, source.targets, source.coding.name, space)
        if key not in self.ceilings:
            rows = self._rows(source, space, self._perfect(source, space), source.coding)
            self.ceilings[key] = {row["region"]: scores.as_ceiling(row) for row in rows}
        return self.ceilings[key]

    def _perfect(self, source: Source, space: str) -> np.ndarray:
        """The label map of a network that returns exactly what it was taught, in the labels that it knows."""
        assert source.geometry is not None
        assert source.shape is not None
        learnt, box = targets_of(source.targets, source.coding), source.geometry.box
        labels = codings.expressed(self.labels, self.schema, source.coding)
        taught = learnt.to_channels(resize(box.crop(labels), source.shape, "nearest"))
        if space == "cube":
            assert self.job.grid is not None
            return resize(learnt.from_channels(taught), self.job.grid, "nearest")
        # lms3d.predict puts channels on the files' grid and then takes labels. Voxels outside of the box are background either way,
        # and in this order they cost no time.
        return box.place(learnt.from_channels(resize(taught, box.shape)), source.geometry.shape)

    @property
    def _shown(self) -> dict[str, float]:
        """Scored region -> the volume of the truth in ml."""
        ml = float(np.prod(self.spacing_mm)) / 1000
        found = codings.masks_of(self.labels, self.schema, self.rules.regions)
        return {region: np.count_nonzero(mask) * ml for region, mask in found.items()}


def own_labels(path: Path, geometry: Geometry) -> np.ndarray:
    """A label map that lms3d.predict wrote, on the grid of the images (`geometry`). InputError or DataError for another grid."""
    labels, affine = label_maps.read_labels(path)
    if labels.shape != geometry.shape:
        raise InputError(
            f"{path}: found shape {labels.shape}; expected {geometry.shape} as of the images; predict again with the same data"
        )
    frame.require_same(path, affine, np.array(geometry.affine), "the images")
    return labels


def _pairs(
    found: np.ndarray, coding: LabelSchema, truth: np.ndarray, schema: LabelSchema, rules: Rules,
    spacing_mm: tuple[float, ...],
) -> Iterator[CasePair]:  # fmt: skip
    """Both label maps as masks. If rules match no lesions, regions do not depend on each other: each has a pair of its own, cut to
    the box that holds it, so that a hundred organs take little more time than one. Voxels of the ignore label count as background.
    """
    if schema.ignore is not None:
        found, truth = (np.where(truth == schema.ignore, np.uint8(0), labels) for labels in (found, truth))
    if rules.matching != "none":
        box = around((found > 0) | (truth > 0), margins(rules, spacing_mm))  # most of a head is background
        yield _pair(found[box], coding, truth[box], schema, rules, rules.needed, spacing_mm, truth.shape)
        return
    boxes = [ndimage.find_objects(labels) for labels in (found, truth)]
    for region in codings.regions_of(schema, rules.regions):
        values = [codings.values_of(coding, region) or (), codings.values_of(schema, region) or ()]
        box = _joined([one for known, of in zip(boxes, values, strict=True) for one in _of_values(known, of)])
        yield _pair(found[box], coding, truth[box], schema, rules, (region,), spacing_mm, truth.shape)


def _of_values(boxes: Sequence[tuple[slice, ...] | None], values: Sequence[int]) -> list[tuple[slice, ...]]:
    """The boxes of these label values, of which value 1 has the first."""
    found = [boxes[value - 1] for value in values if 0 < value <= len(boxes)]
    return [box for box in found if box is not None]


def _joined(boxes: Sequence[tuple[slice, ...]]) -> tuple[slice, ...]:
    """The smallest box around several; one voxel, if there are none."""
    if not boxes:
        return (slice(0, 1),) * 3
    return tuple(
        slice(min(one.start for one in along), max(one.stop for one in along)) for along in zip(*boxes, strict=True)
    )


def _pair(
    found: np.ndarray, coding: LabelSchema, truth: np.ndarray, schema: LabelSchema, rules: Rules, regions: tuple[str, ...],
    spacing_mm: tuple[float, ...], grid: Sequence[int],
) -> CasePair:  # fmt: skip
    """Some regions of parts of two label maps. grid: the shape of the whole maps."""
    masks = (codings.masks_of(labels, of, regions) for labels, of in ((found, coding), (truth, schema)))
    return CasePair(*masks, spacing_mm=spacing_mm, rules=rules, grid=grid)


def _missing(label: str, case: str, truth_ml: dict[str, float], rules: Rules) -> Iterator[Row]:
    """The rows of a case without a prediction: 0, and the penalty for distances (BraTS_evaluation 0.0.10)."""
    penalty = 0.0 if rules.penalty_mm == "diagonal" else rules.penalty_mm
    for region, volume in truth_ml.items():
        row: Row = {"predictions": label, "case": case, "space": "native", "region": region}
        row |= {name: penalty if COLUMNS[name].unit == "mm" else 0.0 for name in COLUMNS.names}
        if not rules.large_from_mm3:  # no lesions are large or small
            row |= {name: np.nan for name in COLUMNS.names if name.endswith(("_large", "_small"))}
        yield row | {
            "truth_ml": volume,
            "volume_difference_ml": volume,
            "volume_difference": -1.0 if volume else np.nan,
        }
