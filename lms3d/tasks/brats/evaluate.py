"""`python -m lms3d.evaluate` for label maps: every case scored in native and in cube space, as tables and box plots."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from nibabel.affines import voxel_sizes

from data.brats import frame
from data.brats.case import Case, load_truth
from data.brats.layouts import find_cases
from data.brats.preprocess import Geometry, resize
from data.brats.schema import LabelSchema, schema_named
from lms3d import files
from lms3d.console import Report as Progress
from lms3d.console import progress
from lms3d.errors import InputError, say
from lms3d.scoring import scores, tables
from lms3d.scoring.columns import COLUMNS, HEADLINE
from lms3d.scoring.figures import box_plot
from lms3d.scoring.masks import region_masks
from lms3d.tasks.brats import label_maps
from lms3d.tasks.brats.label_maps import Predictions
from lms3d.tasks.task import EvaluateRequest, Evaluation


def evaluate(request: EvaluateRequest) -> Evaluation:
    """Scores the cases that all `request.predictions` have; writes tables and box plots."""
    folders = label_maps.load_all(request.predictions)
    alone = folders[0].directory / "evaluation" if len(folders) == 1 else Path("evaluation")
    output = files.writable_folder(request.output or alone, "--output")
    with progress() as report:
        found = score_all(
            folders, truth=request.truth, labels=request.labels, requested=("hd95_mm",) if request.hd95 else (),
            progress=report,
        )  # fmt: skip
    written = write_report(found, output)
    return Evaluation(table=scores.to_markdown(scores.summarise(found)), written=written)


def score_all(
    folders: Sequence[Predictions],
    *,
    truth: str | None = None,
    labels: str | None = None,
    requested: Collection[str] = (),
    progress: Progress,
) -> pd.DataFrame:
    """Scores of every case that all `folders` predicted and that has a truth, in native and in cube space.

    truth: folder of the data set; None takes the one that was predicted from. labels: name of its schema, where its file
    names do not tell. requested: columns that are measured on request alone.
    Cube space is the largest resolution of `folders`; predictions of a lower one are resized to it, nearest neighbour.
    """
    schema, cases = _cases_with_truth(folders, truth, labels)
    rows: list[dict[str, object]] = []
    for done, case in enumerate(cases):
        progress(done, len(cases), "scoring")
        rows += _score_case(folders, case, schema, requested)
    progress(len(cases), len(cases), "scoring")
    order = [one.label for one in folders]
    return scores.frame(sorted(rows, key=lambda row: order.index(str(row["predictions"]))))


def _score_case(
    folders: Sequence[Predictions], case: Case, schema: LabelSchema, requested: Collection[str]
) -> Iterator[dict[str, object]]:
    """Rows of one case, for every folder, in both spaces."""
    geometry = Geometry.from_json(folders[0].cases[case.id])
    affine = np.array(geometry.affine)
    truth = load_truth(case, schema, geometry.shape, affine)
    assert truth is not None  # `_cases_with_truth` has seen to it
    cube = (max(one.resolution for one in folders),) * 3
    true = {
        "native": region_masks(truth, schema.regions),
        "cube": region_masks(resize(truth[geometry.box.slices], cube, "nearest"), schema.regions),
    }
    spacing = tuple(voxel_sizes(affine))
    for one in folders:
        small, _ = label_maps.read_labels(one.cube(case.id))
        found = {"native": _native(one, case, geometry), "cube": resize(small, cube, "nearest")}
        for space, labels in found.items():
            yield from scores.score(
                region_masks(labels, schema_named(one.schema).regions), true[space], predictions=one.label,
                case=case.id, space=space, spacing_mm=spacing, requested=requested,
            )  # fmt: skip


def write_report(found: pd.DataFrame, output: Path, *, title: str = "") -> list[Path]:
    """scores.csv, summary.csv, summary.md and the box plots of `found` in `output`; returns their paths."""
    summary = scores.summarise(found)
    written = [output / "scores.csv", output / "summary.csv", output / "summary.md"]
    tables.write_csv(found, written[0])
    tables.write_csv(summary, written[1])
    files.write_text(written[2], scores.to_markdown(summary))
    for name in COLUMNS.names:
        for space in COLUMNS[name].spaces if COLUMNS[name].box_plot else ():
            heading = f"{title}, {space} space" if title and name == HEADLINE else ""
            written += box_plot.draw(found, space, output / f"{name}_{space}.png", column=name, title=heading)
    return written


def _cases_with_truth(
    folders: Sequence[Predictions], truth: str | None, labels: str | None
) -> tuple[LabelSchema, list[Case]]:
    """The label schema of the truth, and the cases that can be scored, sorted."""
    root = truth or folders[0].data
    cases, schema = find_cases(root, labels=labels or (None if truth else folders[0].schema), require_truth=False)
    shared = set.intersection(*(set(one.cases) for one in folders))
    if not shared:
        raise InputError(
            f"PREDICTIONS: found no case that is in all of {', '.join(one.label for one in folders)}; expected the "
            "same cases in each; predict with the same --data and split"
        )
    scored = [case for case in cases if case.id in shared and case.truth is not None]
    if not scored:
        raise InputError(
            f"{root}: found no label map for any of {len(shared)} predicted cases ({min(shared)}, ...); expected the "
            "data set that they belong to; name it with --truth"
        )
    left_out = len(set.union(*(set(one.cases) for one in folders))) - len(scored)
    if left_out:
        say(f"note: {left_out} predicted cases are left out: they have no truth, or are not in every folder")
    return schema, scored


def _native(one: Predictions, case: Case, geometry: Geometry) -> np.ndarray:
    """The predicted label map (X, Y, Z) on the grid of the files, which is that of the truth in shape and affine."""
    path = one.native(case.id)
    labels, affine = label_maps.read_labels(path)
    if labels.shape != geometry.shape:
        raise InputError(
            f"{path}: found shape {labels.shape}; expected {geometry.shape} as in {case.truth}; predict again with the "
            "same data"
        )
    frame.require_same(path, affine, np.array(geometry.affine), "the images")
    return labels
