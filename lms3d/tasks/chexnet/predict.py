"""`python -m lms3d.predict` for radiographs: the probabilities of 14 findings, and the table that holds them.

    predictions.csv     image,patient,findings,Atelectasis,...,Hernia

`findings` is the truth as ChestX-ray14 writes it (`Effusion|Mass`, `No Finding`). It is empty if it is not known, and so is
`patient`. Probabilities have six decimals.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lms3d.atomic_files import replacing
from lms3d.console import ProgressReport
from lms3d.data import pseudonyms
from lms3d.data.chest_xray.collection import FINDINGS, NO_FINDING
from lms3d.data.words import counted
from lms3d.errors import InputError, say
from lms3d.tasks.inference import Predictor
from lms3d.tasks.task import PredictRequest, TrainedRun
from lms3d.training import config_file

FILE = "predictions.csv"
COLUMNS = ("image", "patient", "findings", *FINDINGS)


@dataclass(frozen=True, kw_only=True)
class Image:
    """A radiograph, before or after prediction."""

    name: str
    patient: str
    findings: tuple[str, ...] | None
    """The truth; None if it is not known."""
    grey: Callable[[], np.ndarray] | None = None
    """A function that reads its pixels (N, N) uint8."""
    probabilities: tuple[float, ...] = ()


def predict(request: PredictRequest) -> tuple[str, dict[str, str]]:
    """Writes the table of the run's test images, or of all images in `request.data`."""
    if request.labels is not None:
        raise InputError(f"--labels is for brain scans, and {request.run_dir} has learned chest X-rays; leave it out")
    of_volumes = request.remove_below_ml, request.cases, request.uncertainty, request.form != "nifti"
    if len(request.runs) > 1 or any(of_volumes):
        asked = "several runs" if len(request.runs) > 1 else "--remove-below, --cases, --uncertainty or --format"
        raise InputError(
            f"found {asked} for {request.run_dir}, which has learned chest X-rays; expected one run of brain scans"
        )
    images = _of_folder(request.data, request.trained.resolution) if request.data else _of_run(request)
    table = request.output / FILE
    with request.runs[0].network() as network:
        write(_predicted(images, network, request.tta is not None, request.progress), table)
    known = any(one.findings is not None for one in images)
    truth = "" if known else " --truth FOLDER_WITH_TABLE"
    return f"{counted(len(images), 'image')} predicted", {
        "probabilities": str(table), "to score them": f"python -m lms3d.evaluate {request.output}{truth}",
    }  # fmt: skip


def sample(run: TrainedRun) -> tuple[str, np.ndarray]:
    """An image of the run's data; see `Task.sample`."""
    from lms3d.data.chest_xray.pipeline import normalised
    from lms3d.data.phantoms import chests

    folder = run.trained.data or chests.write(chests.default_directory())
    one = _of_folder(folder, run.trained.resolution)[0]
    assert one.grey is not None
    return f"image {pseudonyms.of(one.name, 'image')}", normalised(one.grey())


def _of_run(request: PredictRequest) -> list[Image]:
    """The test images of the run, at its resolution. InputError if the data has changed since."""
    from lms3d.data.chest_xray import collection, shards
    from lms3d.data.phantoms import chests

    trained, progress = request.trained, request.progress
    folder = trained.data or chests.write(chests.default_directory(), progress=progress)
    index = shards.build(collection.find_images(folder), trained.resolution, seed=trained.seed, progress=progress)
    if index.fingerprint != config_file.fingerprint(request.runs[0].content, request.run_dir):
        raise InputError(
            f"{folder}: found other data than {request.run_dir} was trained on; expected the same images, labels and "
            "lists; restore them, or name the images with --data"
        )
    part = index.parts["test"]
    return [
        Image(
            name=name, patient=patient, grey=lambda k=k: part.image(k),  # type: ignore[misc]
            findings=tuple(finding for finding, present in zip(FINDINGS, part.labels[k], strict=True) if present),
        )
        for k, (name, patient) in enumerate(zip(part.names, part.patients, strict=True))
    ]  # fmt: skip


def _of_folder(folder: Path, resolution: int) -> list[Image]:
    """All images of a ChestX-ray14 data set, or of a folder of PNGs, whose names are then their paths in it."""
    from lms3d.data import files
    from lms3d.data.chest_xray import collection, png

    def reader(path: Path) -> Callable[[], np.ndarray]:
        return lambda: png.read_grey(path, resolution)

    if collection.is_chest_xray(folder):
        found = collection.find_images(folder)
        if found.problems:
            number = counted(len(found.problems), "image is", "images are")
            say(f"note: {number} left out, the first because of {found.problems[0].line}")
        return [
            Image(name=one.name, patient=one.patient, findings=one.findings, grey=reader(one.path))
            for one in found.images.values()
        ]
    root = files.readable_directory(folder)
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() == ".png" and path.is_file())
    for path in paths:
        pseudonyms.know_path(path, root)
    if not paths:
        raise InputError(f"--data {folder}: found no PNG; expected radiographs, with a table or without; name another")
    return [
        Image(name=path.relative_to(root).as_posix(), patient="", findings=None, grey=reader(path)) for path in paths
    ]


def _predicted(images: Sequence[Image], network: Predictor, tta: bool, progress: ProgressReport) -> Iterator[Image]:
    """The same images with their probabilities; with tta these are means over the image and its mirror image."""
    from lms3d.data.chest_xray.pipeline import normalised

    for done, one in enumerate(images):
        progress(done, len(images), "predicting")
        assert one.grey is not None
        grey = one.grey()
        views = [grey, grey[:, ::-1]] if tta else [grey]
        probabilities = np.mean([network(normalised(view)) for view in views], axis=0)
        yield replace(one, grey=None, probabilities=tuple(map(float, probabilities)))
    progress(len(images), len(images), "predicting")


def write(images: Iterator[Image], path: Path) -> None:
    """Writes the whole table or nothing."""
    with (
        replacing(path) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream,
    ):
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for one in images:
            truth = "" if one.findings is None else "|".join(one.findings) or NO_FINDING
            writer.writerow([one.name, one.patient, truth, *(f"{p:.6f}" for p in one.probabilities)])


def _probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text} as a probability")
    return value


def read(path: Path) -> list[Image]:
    """The inverse of `write`. An InputError names the line that cannot be used."""
    from lms3d.data.chest_xray.collection import parse_findings

    advice = "expected what `python -m lms3d.predict` writes; predict again"
    line = 1
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as stream:
            reader = csv.DictReader(stream)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise ValueError("other columns")
            images = []
            for line, row in enumerate(reader, 2):  # noqa: B007  (for the message)
                pseudonyms.know([Path(row["image"] or "").stem], "image")
                images.append(Image(
                    name=row["image"], patient=row["patient"],
                    findings=parse_findings(row["findings"]) if row["findings"] else None,
                    probabilities=tuple(_probability(row[name]) for name in FINDINGS),
                ))  # fmt: skip
    except OSError as error:
        raise InputError(f"{path}: found {error.strerror}; {advice}") from None
    except (ValueError, TypeError, csv.Error) as error:
        raise InputError(f"{path}, line {line}: found {error}; {advice}") from None
    if not images:
        raise InputError(f"{path}: found no image; {advice}")
    return images
