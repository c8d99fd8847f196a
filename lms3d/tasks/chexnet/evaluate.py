"""`python -m lms3d.evaluate` for radiographs: AUROC of each finding, with intervals, as tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lms3d.atomic_files import write_text
from lms3d.data.chest_xray import collection
from lms3d.data.chest_xray.collection import FINDINGS
from lms3d.data.words import counted
from lms3d.errors import InputError, say
from lms3d.scoring import auroc, tables
from lms3d.scoring.auroc import Scores
from lms3d.scoring.figures import roc
from lms3d.tasks.chexnet import predict
from lms3d.tasks.chexnet.predict import FILE, Image
from lms3d.tasks.claimed_folder import claimed
from lms3d.tasks.task import EvaluateRequest, Evaluation, refuse

TABLE = "auroc.md"


def table_in(path: Path) -> Path | None:
    """The predictions.csv that `path` means: itself, or one in a predictions folder or a run directory."""
    if path.suffix == ".csv":
        return path
    return next((place / FILE for place in (path, path / "predictions") if (place / FILE).is_file()), None)


def evaluate(request: EvaluateRequest) -> Evaluation:
    """Scores the one table in `request.predictions` against its own findings, or against `request.truth`."""
    refuse({"--group": request.groups, "--pool": request.pools}, "is for label maps; name one table of findings alone")
    table = next(table for path in request.predictions if (table := table_in(path)))
    if (count := len(request.predictions)) > 1:
        raise InputError(f"{table}: found {count} PREDICTIONS; chest X-rays are scored one at a time")
    options = {
        "--labels": request.labels, "--scoring": request.scoring, "--prediction-labels": request.prediction_labels,
        "--submission": request.submission, "--margin": request.margin, "--worst": request.worst,
    }  # fmt: skip
    refuse(options, f"is for label maps, and {table} holds probabilities of findings")
    with claimed(request.output or table.parent / "evaluation", "--output") as output:
        return _scored(table, request.truth, output)


def _scored(table: Path, truth: str | None, output: Path) -> Evaluation:
    images = predict.read(table)
    known = [one for one in _with_truth(images, truth) if one.findings is not None]
    if not known:
        raise InputError(
            f"{table}: found no true findings of its {len(images)} images; expected those of some; name a ChestX-ray14 "
            "folder that has them with --truth"
        )
    if len(known) < len(images):
        number = counted(len(images) - len(known), "image is", "images are")
        say(f"note: {number} left out, as the true findings are not known")
    labels = np.array([[finding in (one.findings or ()) for finding in FINDINGS] for one in known], np.uint8)
    probabilities = np.array([one.probabilities for one in known])
    # An image without a patient id counts as the only image of its patient.
    patients = [one.patient or f"image {one.name}" for one in known]
    title = tables.printable(f"{table.parent.resolve().name}/{table.name}")
    write_areas(output, output, labels, probabilities, patients, title)
    names = ("auroc.csv", TABLE, "roc.png", "auroc.png")
    return Evaluation(table=(output / TABLE).read_text(), written=[output / name for name in names])


def _with_truth(images: Sequence[Image], truth: str | None) -> list[Image]:
    if truth is None:
        return list(images)
    known = collection.find_images(truth).images
    return [
        replace(one, patient=known[one.name].patient, findings=known[one.name].findings)
        if one.name in known else replace(one, findings=None)
        for one in images
    ]  # fmt: skip


def write_areas(
    folder: Path, figures: Path, labels: np.ndarray, probabilities: np.ndarray, patients: Sequence[str], title: str,
    remark: str = "",
) -> Scores:  # fmt: skip
    """Writes auroc.csv and auroc.md into one folder, roc.png and auroc.png into another. labels, probabilities: (images, 14)."""
    scores = auroc.score(labels, probabilities, FINDINGS, patients=patients)
    tables.write_csv(tables.auroc_table(scores), folder / "auroc.csv")
    write_text(folder / TABLE, tables.auroc_markdown(scores, remark))
    title = f"{title}, {scores.images} images of {scores.patients} patients"
    roc.roc_curves(scores, auroc.curves(labels, probabilities, FINDINGS), figures / "roc.png", title=title)
    roc.areas(scores, figures / "auroc.png", title=title)
    return scores
