"""AUROC of a predictions.csv: `python -m lms3d.evaluate` for chest X-rays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data.chest_xray.collection import FINDINGS
from lms3d.errors import InputError, say
from lms3d.tasks.chexnet import predict, task
from lms3d.tasks.chexnet.predict import FILE, Image

WRITTEN = ("auroc.csv", task.TABLE, "roc.png", "auroc.png")


def table_in(path: Path) -> Path | None:
    """The predictions.csv that `path` means: itself, or one in a predictions folder or a run directory."""
    if path.suffix == ".csv":
        return path
    return next((place / FILE for place in (path, path / "predictions") if (place / FILE).is_file()), None)


def evaluate(table: Path, output: Path, *, truth: str | None = None) -> str:
    """Write auroc.csv, auroc.md, roc.png and auroc.png to `output`; returns the table in Markdown.

    truth: a ChestX-ray14 folder that knows the findings; None takes those that the table has.
    """
    images = predict.read(table)
    known = [one for one in _with_truth(images, truth) if one.findings is not None]
    if not known:
        raise InputError(
            f"{table}: found no true findings of its {len(images)} images; expected those of some; name a ChestX-ray14 "
            "folder that has them with --truth"
        )
    if len(known) < len(images):
        say(f"note: {len(images) - len(known)} images are left out: nobody knows their findings")
    labels = np.array([[finding in (one.findings or ()) for finding in FINDINGS] for one in known], np.uint8)
    probabilities = np.array([one.probabilities for one in known])
    # Without a patient an image stands for itself, as someone's only one.
    patients = [one.patient or f"image {one.name}" for one in known]
    task.write_areas(output, output, labels, probabilities, patients, f"{table.parent.resolve().name}/{table.name}")
    return (output / task.TABLE).read_text()


def _with_truth(images: Sequence[Image], truth: str | None) -> list[Image]:
    if truth is None:
        return list(images)
    from data.chest_xray import collection

    known = collection.find_images(truth).images
    return [
        Image(
            name=one.name, patient=known[one.name].patient if one.name in known else one.patient,
            findings=known[one.name].findings if one.name in known else None, probabilities=one.probabilities,
        )
        for one in images
    ]  # fmt: skip
