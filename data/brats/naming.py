"""Layouts whose files of a case differ in a suffix only. The data sets that are laid out so: `published`."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from data.brats.case import Case
from data.brats.header import ENDINGS
from data.brats.patients import grade_of
from data.brats.schema import CHANNELS

_SET = r"(?<![a-z])(?:gli|peds?|mets?|ssa|men|goat)"
_CHALLENGE = re.compile(rf"brats|miccai|{_SET}(?![a-z])", re.IGNORECASE)
_YEAR = re.compile(r"(?<!\d)(20[12]\d)(?!\d)")  # BraTS2023, BraTS-PEDs2024_Training, MICCAI2024-BraTS-GoAT, MET2023
_SHORT_YEAR = re.compile(r"brats[-_ ]?([12]\d)(?!\d)", re.IGNORECASE)  # BraTS24_MET
_PERHAPS_A_YEAR = re.compile(rf"{_SET}[-_ ]?(2\d)(?!\d)", re.IGNORECASE)  # PED24, which may be a number of cases
_MARKS = {  # folders that a set has, whatever they lie in
    "training_data1": 2024,
    "training_data1_v2": 2024,
    "training_data_additional": 2024,
}
_CASE = re.compile(r"BraTS-[A-Za-z]+-\d{5}")  # its numbers are no years


@dataclass(frozen=True, kw_only=True)
class Named:
    """A layout (see `data.brats.layouts`): `<stem><suffix>.nii[.gz]`, with the same stem for all files of a case."""

    title: str
    """As people call the data set; where `schema` is empty, with the schemas that it may have."""
    schema: str
    """Name of its label schema; "" where that cannot be known from names and path."""
    case: str
    """Regular expression that the name of a case matches from its start."""
    images: tuple[str, str, str, str]
    """Suffixes of t1, t1ce, flair, t2 (the order of CHANNELS)."""
    truth: tuple[str, ...]
    """Suffixes of the label map, in order of preference."""
    odd_truth: tuple[str, ...] = ()
    """File name patterns of label maps whose stem is not that of the images."""
    years: tuple[int | None, ...] = ()
    """Years that the path may tell, where names alone do not tell two sets apart; None: no year. Empty: whatever it tells."""

    def stems(self, folder: Path, files: Sequence[str]) -> list[str]:
        if self.years and year_of(folder) not in self.years:
            return []
        return [stem for stem, found in _by_stem(self, tuple(files)).items() if set(self.images) & found.keys()]

    def case_of(self, folder: Path, stem: str, files: Sequence[str]) -> Case:
        found = _by_stem(self, tuple(files))[stem]
        suffixes = dict(zip(CHANNELS, self.images, strict=True))
        problem = next(
            (
                f"{folder}: found no {channel} image; expected {stem}{suffix}.nii.gz; add the file, or leave the case out "
                "(python -m data.prepare DATA --skip-bad)"
                for channel, suffix in suffixes.items()
                if suffix not in found
            ),
            "",
        )
        alone = len(self.stems(folder, files)) == 1
        truths = [found[suffix] for suffix in self.truth if suffix in found]
        if self.odd_truth and alone:  # else nobody knows whose it is
            truths += [name for pattern in self.odd_truth for name in fnmatch.filter(files, pattern)]
        return Case(
            id=folder.name if alone and stem.startswith(folder.name) else stem,
            images={channel: folder / found[suffix] for channel, suffix in suffixes.items() if suffix in found},
            truth=folder / truths[0] if truths else None,
            other_truths=tuple(folder / name for name in truths[1:]),
            grade=grade_of(folder),
            problem=problem,
        )


def year_of(folder: Path) -> int | None:
    """The year of the challenge: that of the nearest folder which names challenge or set with a year.

    None where there is no such folder, or it tells two years, or a nearer one has another, which may be a year or not.
    """
    doubtful: set[int] = set()
    for part in reversed(folder.parts):
        if years := _years(part):
            return years.pop() if len(years | doubtful) == 1 else None
        doubtful |= _possible_years(part)
    return None


def _years(part: str) -> set[int]:
    """Those that a folder tells by its name."""
    if part in _MARKS:
        return {_MARKS[part]}
    if _CASE.match(part) or not _CHALLENGE.search(part):
        return set()
    return {int(year) for year in _YEAR.findall(part)} or {2000 + int(year) for year in _SHORT_YEAR.findall(part)}


def _possible_years(part: str) -> set[int]:
    """Numbers in the name of a folder that tells no year: one of the challenge, a day's, or nothing of the kind."""
    if _CASE.match(part):
        return set()
    return {int(year) for year in _YEAR.findall(part)} | {2000 + int(year) for year in _PERHAPS_A_YEAR.findall(part)}


@lru_cache(maxsize=64)  # a flat folder is asked for once per case, by every layout
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
