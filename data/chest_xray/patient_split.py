"""The split of radiographs into training, validation and test: by patient, never by image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lms3d.data import split
from lms3d.data.chest_xray.collection import TEST_LIST, Collection
from lms3d.data.errors import DataError

PARTS = ("training", "validation", "test")


def parts(
    collection: Collection, *, seed: int = 0, validation_fraction: float = 0.125, test_fraction: float = 0.2
) -> dict[str, tuple[str, ...]]:
    """Part -> the names of its images, sorted. No patient is in two parts.

    The test part is the official list, if there is one, else a draw of `test_fraction` of the patients. The validation part is a
    draw of `validation_fraction` of the others. By default 70 / 10 / 20 % of all patients, as in the CheXNet paper.
    """
    patient = {name: image.patient for name, image in collection.images.items()}
    if collection.test is None:
        test = set(split.make(patient.values(), seed, test_fraction).validation)
    else:
        test = {patient[name] for name in patient if name in collection.test}
    if not test:
        raise DataError(
            f"{collection.root / TEST_LIST}: found no image that is here; expected at least one; check the list"
        )
    others = split.make((p for p in patient.values() if p not in test), seed + 1, validation_fraction)
    members = dict(zip(PARTS, (others.training, others.validation, test), strict=True))
    part_of = {p: part for part, patients in members.items() for p in patients}
    images = {part: tuple(name for name in patient if part_of[patient[name]] == part) for part in PARTS}
    require_disjoint({part: [patient[name] for name in names] for part, names in images.items()}, collection.root)
    return images


def require_disjoint(patients: Mapping[str, Sequence[str]], where: Path) -> None:
    """DataError if a patient is in two parts: a network recognises a chest that it has seen."""
    seen: dict[str, str] = {}
    for part, ids in patients.items():
        for patient in sorted(set(ids)):
            if patient in seen:
                raise DataError(
                    f"{where}: found patient {patient} in {seen[patient]} and in {part}; expected every patient in "
                    "one part; split by patient"
                )
            seen[patient] = part
