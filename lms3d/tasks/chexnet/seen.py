"""The patients on whom the weights of an earlier run were trained: they must neither validate nor be tested here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lms3d.console import say
from lms3d.errors import InputError

if TYPE_CHECKING:
    from lms3d.data.chest_xray.records import Index

_OF_A_RUN = (".keras", ".weights.h5")
"""The endings of weights of a whole network. ImageNet's end otherwise (WEIGHTS-2 in `lms3d.models.chexnet`), and have seen no patient."""


def trained_by(weights: Path, index: Index) -> list[str]:
    """The images on which these weights were trained, in the run that wrote them and in earlier ones; [] with a note if no
    split.json tells. InputError if a patient of such an image would validate or be tested."""
    from lms3d.data import split

    path = split.of_weights(weights)
    if path is None:
        if weights.name.endswith(_OF_A_RUN):
            say(f"note: --weights {weights}: no split.json of a run lies there; whether these weights have seen patients that "
                "validate or are tested here, nobody knows")  # fmt: skip
        return []
    names = _names(path, ("training", "seen_before"))
    patient = {name: who for part in index.parts.values() for name, who in zip(part.names, part.patients, strict=True)}
    known = {patient[name] for name in names if name in patient}
    if seen := sorted(known & {who for part in ("validation", "test") for who in index.parts[part].patients}):
        raise InputError(
            f"--weights {weights}: these weights have seen patient {seen[0]} ({len(seen)} patients in all), who would validate or "
            "be tested here; give the --seed of that run, with which its patients are divided alike, or other weights"
        )
    return names


def before(split_file: Path) -> list[str]:
    """What `trained_by` found when the run began, from its split.json."""
    return _names(split_file, ("seen_before",)) if split_file.is_file() else []


def _names(split_file: Path, parts: tuple[str, ...]) -> list[str]:
    """The names of the images in these parts of a split.json."""
    from lms3d.data.files import read_json

    content = read_json(split_file, advice="restore it, or start a new run", keys=("training",))
    found = [content.get(part, []) for part in parts]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in found):
        raise InputError(
            f"{split_file}: found no lists of images; expected {' and '.join(parts)} as lms3d.train writes them; restore it"
        )
    return sorted({name for names in found for name in names})
