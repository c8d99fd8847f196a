"""The baseline of a comparison: what intensities alone score on the cases that the networks are tested on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lms3d.atomic_files import write_json
from lms3d.console import progress
from lms3d.data import split
from lms3d.data.brats import layouts
from lms3d.data.volumes.case import Case, load_images, load_truth
from lms3d.data.volumes.data_set import DataSet
from lms3d.data.volumes.geometry import foreground_box
from lms3d.data.volumes.labels import LabelSchema
from lms3d.scoring import rules, statistics
from lms3d.scoring.dice import PERFECT
from lms3d.tasks.brats import intensity_baseline
from lms3d.tasks.brats.intensity_baseline import FILE, Volumes


@dataclass(frozen=True, kw_only=True)
class BaselineDice:
    """Dice of one region on the grid of the files."""

    region: str
    cases: int
    mean: float
    low: float
    high: float
    """The ends of the 95 % interval of the mean over cases; NaN for fewer than three cases."""

    def cells(self) -> list[str]:
        """The row of a table; "" for a NaN."""
        figures = (self.mean, self.low, self.high)
        return [self.region, str(self.cases), *("" if np.isnan(one) else f"{one:.3f}" for one in figures)]


def of_split(
    data: Path, labels: str | None, path: Path, output: Path, tested: Sequence[str] | None = None
) -> dict[str, list[float]]:
    """See `measured`, for the split in a file. tested: the cases to score; None takes the validation cases."""
    parts = split.load(path)
    return measured(data, labels, parts.training, parts.validation if tested is None else tested, output)


def measured(
    data: Path, labels: str | None, training: Sequence[str], tested: Sequence[str], output: Path
) -> dict[str, list[float]]:
    """Region -> Dice of each of the `tested` cases, after fitting to the `training` cases. Kept as FILE in `output`, and measured
    again if other cases are asked for."""
    path, asked = output / FILE, {"training": sorted(training), "tested": sorted(tested)}
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if {name: known.get(name) for name in asked} != asked:
        known = {**asked, "dice": _measure(data, labels, asked["training"], asked["tested"])}
        write_json(path, known)
    return {region: [float(value) for value in values] for region, values in known["dice"].items()}


def rows(dice: Mapping[str, Sequence[float]]) -> list[BaselineDice]:
    """A row for each region. A NaN, which the rules give for a region that is empty in both masks, is left out."""
    made = []
    for region, values in dice.items():
        known = np.array([value for value in values if np.isfinite(value)])
        low, high = statistics.interval_of_mean(known)
        mean = float(known.mean()) if known.size else float("nan")
        made.append(BaselineDice(region=region, cases=known.size, mean=mean, low=low, high=high))
    return made


def _measure(data: Path, labels: str | None, training: Sequence[str], tested: Sequence[str]) -> dict[str, list[float]]:
    found = layouts.find_cases(data, labels=labels, require_complete=False)
    chosen = rules.select(None, found.schema.name, [case.id for case in found.cases])
    empty = PERFECT if chosen.both_empty == "perfect" else float("nan")
    with progress() as report:
        analysis = intensity_baseline.fit(_read(found, training, "reading training cases", report))
        cases = _read(found, tested, "segmenting by intensity", report)
        return intensity_baseline.scores(analysis, cases, found.schema.regions, both_empty=empty)


def _read(found: DataSet, ids: Sequence[str], what: str, report: object) -> Iterator[Volumes]:
    """The volumes of these cases, cut to the brain."""
    assert callable(report)
    cases = {case.id: case for case in found.cases}
    for done, case_id in enumerate(ids):
        report(done, len(ids), what)
        yield read(cases[case_id], found.schema)
    report(len(ids), len(ids), what)


def read(case: Case, schema: LabelSchema) -> Volumes:
    """The volumes of a case that has a truth, cut to the brain."""
    images, affine = load_images(case)
    truth = load_truth(case, schema, images.shape[:3], affine)
    assert truth is not None, "only cases with a truth are asked for"
    box = foreground_box(images)
    return box.crop(images), box.crop(truth)
