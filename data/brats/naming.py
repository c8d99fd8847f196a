"""Layouts in which the files of a case differ only in a suffix. `published` has the data sets with such a layout."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lms3d.data.brats.case import Case
from lms3d.data.brats.header import ENDINGS
from lms3d.data.brats.patients import grade_of
from lms3d.data.brats.schema import CHANNELS

_SET = r"(?<![a-z])(?:gli|peds?|mets?|ssa|men|goat)"
_CHALLENGE = re.compile(rf"brats|miccai|{_SET}(?![a-z])", re.IGNORECASE)
_YEAR = re.compile(r"(?<!\d)(20[12]\d)(?!\d)")  # BraTS2023, BraTS-PEDs2024_Training, MICCAI2024-BraTS-GoAT, MET2023
_SHORT_YEAR = re.compile(r"brats[-_ ]?([12]\d)(?!\d)", re.IGNORECASE)  # BraTS24_MET
_PERHAPS_A_YEAR = re.compile(rf"{_SET}[-_ ]?(2\d)(?!\d)", re.IGNORECASE)  # PED24, which may be a number of cases
_MARKS = {  # folders by which a set is recognised, wherever they lie
    "training_data1": 2024,
    "training_data1_v2": 2024,
    "training_data_additional": 2024,
}
_CASE = re.compile(r"BraTS-[A-Za-z]+-\d{5}")  # numbers in the name of a case are no years


@dataclass(frozen=True, kw_only=True)
class Named:
    """A layout (see `lms3d.data.brats.layouts`): `<stem><suffix>.nii[.gz]`, with the same stem for all files of a case."""

    title: str
    """The name of the data set; if `schema` is empty, with the schemas that it may have."""
    schema: str
    """The name of its label schema; "" if names and path do not show it."""
    case: str
    """The regular expression that the name of a case matches from its start."""
    images: tuple[str, str, str, str]
    """The suffixes of t1, t1ce, flair, t2 (the order of CHANNELS)."""
    truth: tuple[str, ...]
    """The suffixes of the label map, in order of preference."""
    odd_truth: tuple[str, ...] = ()
    """Patterns for the names of label maps whose stem is not that of the images."""
    years: tuple[int | None, ...] = ()
    """The years that the path may name, if names alone do not distinguish two sets; None in it stands for a path without a year.
    Empty: the year does not matter."""

    def stems(self, folder: Path, files: Sequence[str]) -> list[str]:
        if self.years and year_of(folder) not in self.years:
            return []
        return [stem for stem, named in _by_stem(self, tuple(files)).items() if set(self.images) & named.keys()]

    def case_of(self, folder: Path, stem: str, files: Sequence[str]) -> Case:
        named = _by_stem(self, tuple(files))[stem]
        suffixes = dict(zip(CHANNELS, self.images, strict=True))
        problem = next(
            (
                f"{folder}: found no {channel} image; expected {stem}{suffix}.nii.gz; add the file, or leave the case out "
                "(python -m lms3d.data.prepare DATA --skip-bad)"
                for channel, suffix in suffixes.items()
                if suffix not in named
            ),
            "",
        )
        alone = len(self.stems(folder, files)) == 1
        truths = [named[suffix] for suffix in self.truth if suffix in named]
        if self.odd_truth and alone:  # otherwise it could be of any case in the folder
            truths += [name for pattern in self.odd_truth for name in fnmatch.filter(files, pattern)]
        return Case(
            id=folder.name if alone and stem.startswith(folder.name) else stem,
            images={channel: folder / named[suffix] for channel, suffix in suffixes.items() if suffix in named},
            truth=folder / truths[0] if truths else None,
            other_truths=tuple(folder / name for name in truths[1:]),
            grade=grade_of(folder),
            problem=problem,
        )


def year_of(folder: Path) -> int | None:
    """The year of the challenge: that in the nearest folder name with the challenge or set and a year.

    None if there is no such folder, if it names two years, or if a nearer folder has another number that may be a year.
    """
    doubtful: set[int] = set()
    for part in reversed(folder.parts):
        if years := _years(part):
            return years.pop() if len(years | doubtful) == 1 else None
        doubtful |= _possible_years(part)
    return None


def _years(part: str) -> set[int]:
    """The years that the name of a folder states."""
    if part in _MARKS:
        return {_MARKS[part]}
    if _CASE.match(part) or not _CHALLENGE.search(part):
        return set()
    return {int(year) for year in _YEAR.findall(part)} or {2000 + int(year) for year in _SHORT_YEAR.findall(part)}


def _possible_years(part: str) -> set[int]:
    """The numbers in the name of a folder that may be years: of the challenge, of a date, or by chance."""
    if _CASE.match(part):
        return set()
    return {int(year) for year in _YEAR.findall(part)} | {2000 + int(year) for year in _PERHAPS_A_YEAR.findall(part)}


@lru_cache(maxsize=64)  # every layout asks for a flat folder once per case
def _by_stem(layout: Named, files: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Stem -> suffix -> file."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for ending in reversed(ENDINGS):  # the preferred ending comes last, and replaces the other
        for name in files:
            for suffix in (*layout.images, *layout.truth):
                stem = name.removesuffix(suffix + ending)
                if stem != name and re.match(layout.case, stem):
                    groups[stem][suffix] = name
    return groups
