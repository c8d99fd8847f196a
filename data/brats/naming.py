"""How BraTS and data sets like it name their files: one row per data set, and no branch for its oddities."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from data.brats.case import Case
from data.brats.schema import CHANNELS
from data.errors import DataError

ENDINGS = (".nii.gz", ".nii")
"""In order of preference: mirrors unpack, and some keep both."""

_EARLY = ("_t1", "_t1ce", "_flair", "_t2")
_LATE = ("-t1n", "-t1c", "-t2f", "-t2w")


@dataclass(frozen=True, kw_only=True)
class Named:
    """A layout (see `data.brats.layouts`): `<stem><suffix>.nii[.gz]`, with the same stem for all files of a case."""

    schema: str
    """Name of its label schema."""
    case: str
    """Regular expression that the name of a case matches from its start."""
    images: tuple[str, str, str, str]
    """Suffixes of t1, t1ce, flair, t2 (the order of CHANNELS)."""
    truth: tuple[str, ...]
    """Suffixes of the label map, in order of preference."""
    odd_truth: tuple[str, ...] = ()
    """File name patterns of label maps whose stem is not that of the images."""
    path: str = ""
    """Regular expression that must be found in the folder's path, where names alone do not tell two sets apart."""

    def stems(self, folder: Path, files: Sequence[str]) -> list[str]:
        if not re.search(self.path, str(folder), re.IGNORECASE):
            return []
        return [stem for stem, found in _by_stem(self, tuple(files)).items() if set(self.images) & found.keys()]

    def case_of(self, folder: Path, stem: str, files: Sequence[str]) -> Case:
        found = _by_stem(self, tuple(files))[stem]
        for channel, suffix in zip(CHANNELS, self.images, strict=True):
            if suffix not in found:
                raise DataError(
                    f"{folder}: found no {channel} image; expected {stem}{suffix}.nii.gz; add the file, or take the case "
                    "out of the folder"
                )
        truths = [found[suffix] for suffix in self.truth if suffix in found]
        if self.odd_truth and len(self.stems(folder, files)) == 1:  # else nobody knows whose it is
            truths += [name for pattern in self.odd_truth for name in fnmatch.filter(files, pattern)]
        return Case(
            id=folder.name if stem.startswith(folder.name) else stem,
            images={channel: folder / found[suffix] for channel, suffix in zip(CHANNELS, self.images, strict=True)},
            truth=folder / truths[0] if truths else None,
        )


@lru_cache(maxsize=16)  # a flat folder is asked for once per case
def _by_stem(layout: Named, files: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Stem -> {suffix: file}."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for ending in reversed(ENDINGS):  # the preferred ending is written last and stays
        for name in files:
            for suffix in (*layout.images, *layout.truth):
                stem = name.removesuffix(suffix + ending)
                if stem != name and re.match(layout.case, stem):
                    groups[stem][suffix] = name
    return groups


PUBLISHED = (
    Named(
        schema="tcia",
        case=r"TCGA-",
        images=("_t1", "_t1Gd", "_flair", "_t2"),
        truth=("_GlistrBoost_ManuallyCorrected", "_GlistrBoost"),
    ),
    Named(schema="brats2017", case=r"Brats17_", images=_EARLY, truth=("_seg",)),
    Named(schema="brats2018", case=r"Brats18_", images=_EARLY, truth=("_seg",)),
    Named(schema="brats2019", case=r"BraTS19_", images=_EARLY, truth=("_seg",)),
    Named(
        schema="brats2020",
        case=r"BraTS20_",
        images=_EARLY,
        truth=("_seg",),
        odd_truth=("*_Segm.nii*",),  # training case 355 ships W39_1998.09.19_Segm.nii
    ),
    Named(schema="brats2021", case=r"BraTS2021_", images=_EARLY, truth=("_seg",)),
    Named(
        schema="brats2024",
        case=r"BraTS-GLI-",
        images=_LATE,
        truth=("-seg",),
        path=r"BraTS-?2024|training_data1|training_data_additional",
    ),
    Named(schema="brats2023", case=r"BraTS-(GLI|SSA|MEN|MET|PED)-", images=_LATE, truth=("-seg",)),
)

OWN = (
    Named(schema="", case=r"", images=_EARLY, truth=("_seg",)),
    Named(schema="", case=r"", images=_LATE, truth=("-seg",)),
)
"""Own data with the file names of BraTS: the labels could mean anything, so --labels must say."""
