"""`python -m lms3d.evaluate`: score predictions against the truth, as tables and box plots."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d import cli, errors

if TYPE_CHECKING:
    import numpy as np

    from data.brats.case import Case
    from data.brats.preprocess import Geometry
    from data.brats.schema import LabelSchema
    from lms3d.scoring.scores import Record
    from lms3d.tasks.brats.label_maps import Predictions

_DESCRIPTION = """\
Score predictions against the true label maps: Dice of the whole tumour (WT), the tumour core (TC) and the enhancing
tumour (ET) for every case, as CSV, as a summary table and as box plots.

PREDICTIONS is a run directory (runs/192) after `python -m lms3d.predict runs/192`, or any folder that predict wrote.
Give several to see them side by side. Everything is scored twice:
  native  on the grid of the original files, against the original truth (what counts for a patient)
  cube    on the largest cube of those given: predictions at a lower resolution are first resized to it, as in the
          LMS case study

Of chest X-rays, PREDICTIONS is such a directory or its predictions.csv, one at a time. It gives the area under the ROC
curve (AUROC) of each finding, with 95 % intervals."""

_EPILOG = """\
examples:
  python -m lms3d.evaluate runs/192
  python -m lms3d.evaluate runs/144 runs/192 --output comparison
  python -m lms3d.evaluate runs/192/predictions --truth ~/MICCAI_BraTS2020_TrainingData --hd95
  python -m lms3d.evaluate radiographs/predictions.csv --truth ~/ChestX-ray14

writes into --output: scores.csv, summary.csv, summary.md, dice_native.png/.pdf, dice_cube.png/.pdf; of chest X-rays
auroc.csv, auroc.md, roc.png, auroc.png
exit codes: 0 done, 2 wrong option or wrong input (one line says what), 130 interrupted"""

Tell = Callable[[int, int, str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Load, score, tabulate, draw. Returns the exit code."""
    return errors.run(lambda: _evaluate(_parser().parse_args(arguments)))


def _evaluate(options: argparse.Namespace) -> None:
    from lms3d.console import progress
    from lms3d.files import writable_folder
    from lms3d.scoring import scores
    from lms3d.tasks.brats import label_maps

    if _evaluated_images(options):
        return
    folders = label_maps.load_all(options.predictions)
    output = Path(options.output).expanduser() if options.output else _default_output(folders)
    writable_folder(output, "--output")
    with progress() as tell:
        records = score_all(folders, truth=options.truth, labels=options.labels, hd95=options.hd95, progress=tell)
    written = write_report(records, output)
    print(scores.to_markdown(scores.summarise(records)))
    print("written:", *(f"  {path}" for path in written), sep="\n")


def _evaluated_images(options: argparse.Namespace) -> bool:
    """Score the one predictions.csv of chest X-rays that was named; False where none was."""
    from lms3d.files import writable_folder
    from lms3d.tasks.chexnet import evaluate

    paths = [Path(path).expanduser() for path in options.predictions]
    tables = [table for path in paths if (table := evaluate.table_in(path))]
    if not tables:
        return False
    if len(paths) > 1:
        raise errors.InputError(f"{tables[0]}: found {len(paths)} PREDICTIONS; chest X-rays are scored one at a time")
    for option, given in (("--hd95", options.hd95), ("--labels", options.labels)):
        if given:
            raise errors.InputError(
                f"{option} is for label maps, and {tables[0]} holds probabilities of findings; leave it out"
            )
    output = Path(options.output).expanduser() if options.output else tables[0].parent / "evaluation"
    print(evaluate.evaluate(tables[0], writable_folder(output, "--output"), truth=options.truth))
    print("written:", *(f"  {output / name}" for name in evaluate.WRITTEN), sep="\n")
    return True


def score_all(
    folders: Sequence[Predictions],
    *,
    truth: str | None = None,
    labels: str | None = None,
    hd95: bool = False,
    progress: Tell | None = None,
) -> list[Record]:
    """Records of every case that all `folders` predicted and that has a truth, in native and in cube space.

    truth: folder of the data set; None takes the one that the predictions were made from. labels: name of its schema, where
    its file names do not tell.
    Cube space is the largest resolution of `folders`; predictions of a lower one are resized to it, nearest neighbour.
    """
    schema, cases = _cases_with_truth(folders, truth, labels)
    records: list[Record] = []
    for done, case in enumerate(cases):
        if progress:
            progress(done, len(cases), "scoring")
        records += _score_case(folders, case, schema, hd95)
    if progress:
        progress(len(cases), len(cases), "scoring")
    return sorted(records, key=lambda record: [one.label for one in folders].index(record.predictions))


def _score_case(folders: Sequence[Predictions], case: Case, schema: LabelSchema, hd95: bool) -> list[Record]:
    """Records of one case, for every folder, in both spaces."""
    import numpy as np
    from nibabel.affines import voxel_sizes

    from data.brats.case import load_truth
    from data.brats.preprocess import Geometry, resize
    from lms3d.scoring import scores
    from lms3d.scoring.masks import region_masks
    from lms3d.tasks.brats.label_maps import read_labels

    geometry = Geometry.from_json(folders[0].cases[case.id])
    affine = np.array(geometry.affine)
    truth = load_truth(case, schema, geometry.shape, affine)
    assert truth is not None  # `_cases_with_truth` has seen to it
    cube = (max(one.resolution for one in folders),) * 3
    true = {
        "native": region_masks(truth, schema.regions),
        "cube": region_masks(resize(truth[geometry.box.slices], cube, "nearest"), schema.regions),
    }
    spacing = tuple(voxel_sizes(affine)) if hd95 else None
    records = []
    for one in folders:
        regions = _schema(one).regions
        small, _ = read_labels(one.cube(case.id))
        found = {"native": _native(one, case, geometry), "cube": resize(small, cube, "nearest")}
        for space, labels in found.items():
            records += scores.score(
                region_masks(labels, regions),
                true[space],
                predictions=one.label,
                case=case.id,
                space=space,
                spacing_mm=spacing if space == "native" else None,  # a cube's voxels are no millimetres
            )
    return records


def write_report(records: Sequence[Record], output: Path, *, title: str = "") -> list[Path]:
    """scores.csv, summary.csv, summary.md and the box plots of `records` in `output`; returns their paths."""
    from lms3d import files
    from lms3d.scoring import scores
    from lms3d.scoring.figures import box_plot

    summaries = scores.summarise(records)
    written = [output / "scores.csv", output / "summary.csv", output / "summary.md"]
    scores.write_csv(records, written[0])
    scores.write_csv(summaries, written[1])
    files.write_text(written[2], scores.to_markdown(summaries))
    for space in scores.SPACES:
        written += box_plot.draw(
            records, space, output / f"dice_{space}.png", title=title and f"{title}, {space} space"
        )
    return written


def _cases_with_truth(
    folders: Sequence[Predictions], truth: str | None, labels: str | None
) -> tuple[LabelSchema, list[Case]]:
    """The label schema of the truth, and the cases that can be scored, sorted."""
    from data.brats.layouts import find_cases

    root = truth or folders[0].data
    cases, schema = find_cases(root, labels=labels or (None if truth else folders[0].schema), require_truth=False)
    shared = set.intersection(*(set(one.cases) for one in folders))
    if not shared:
        raise errors.InputError(
            f"PREDICTIONS: found no case that is in all of {', '.join(one.label for one in folders)}; expected the "
            "same cases in each; predict with the same --data and split"
        )
    scored = [case for case in cases if case.id in shared and case.truth is not None]
    if not scored:
        raise errors.InputError(
            f"{root}: found no label map for any of {len(shared)} predicted cases ({min(shared)}, ...); expected the "
            "data set that they belong to; name it with --truth"
        )
    left_out = len(set.union(*(set(one.cases) for one in folders))) - len(scored)
    if left_out:
        errors.say(f"note: {left_out} predicted cases are left out: they have no truth, or are not in every folder")
    return schema, scored


def _schema(one: Predictions) -> LabelSchema:
    from data.brats.schema import schema_named

    return schema_named(one.schema)


def _native(one: Predictions, case: Case, geometry: Geometry) -> np.ndarray:
    """The predicted label map (X, Y, Z) on the grid of the files, which is that of the truth in shape and affine."""
    import numpy as np

    from data.brats import frame
    from lms3d.tasks.brats.label_maps import read_labels

    path = one.native(case.id)
    labels, affine = read_labels(path)
    if labels.shape != geometry.shape:
        raise errors.InputError(
            f"{path}: found shape {labels.shape}; expected {geometry.shape} as in {case.truth}; predict again with the "
            "same data"
        )
    frame.require_same(path, affine, np.array(geometry.affine), "the images")
    return labels


def _default_output(folders: Sequence[Predictions]) -> Path:
    return folders[0].directory / "evaluation" if len(folders) == 1 else Path("evaluation")


def _parser() -> argparse.ArgumentParser:
    parser = cli.Parser(prog="python -m lms3d.evaluate", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument(
        "predictions", nargs="+", metavar="PREDICTIONS", help="run directory, predictions folder or table"
    )
    add = parser.add_argument
    add("--truth", metavar="DIR", default=None, help="data set with the truth (default: the one predicted from)")
    meaning = "what the truth's label values mean, such as brats2021, where its file names do not tell"
    add("--labels", metavar="SCHEMA", default=None, help=meaning)
    where = "where tables and figures go (default: PREDICTIONS/evaluation; for several, ./evaluation)"
    add("--output", metavar="DIR", default=None, help=where)
    add("--hd95", action="store_true", default=False, help="add the 95%% surface distance in mm, native space (slow)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
