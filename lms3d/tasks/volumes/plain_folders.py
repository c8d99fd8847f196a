"""The predictions of any program: a folder of NIfTI label maps on the grid of the truth, matched to its cases by name.

<case>.nii.gz                       nnU-Net
<case>_seg.nii.gz, <case>/<case>_seg.nii.gz, or any other name with the case in it or in its folder's    MONAI
<anything>00000-000.nii.gz          a submission to the challenge: the end of the case's name is enough
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lms3d.data import pseudonyms
from lms3d.errors import InputError

_ENDINGS = (".nii.gz", ".nii")


@dataclass(frozen=True, kw_only=True)
class PlainFolder:
    """Label maps without a description of their origin."""

    directory: Path
    label: str
    files: tuple[Path, ...]

    def matched(self, cases: Iterable[str]) -> dict[str, Path]:
        """Case id -> its file. InputError if two files fit a case, or two cases fit a file."""
        ids = sorted(cases)
        found: dict[str, list[Path]] = defaultdict(list)
        words = {one: re.compile(rf"(?<![A-Za-z0-9]){re.escape(one)}(?![A-Za-z0-9])") for one in ids}
        ends = _unique_ends(ids)
        for path in self.files:
            case = _case_of(path.relative_to(self.directory), words, ends, path)
            if case is not None:
                found[case].append(path)
        for case, paths in found.items():
            if len(paths) > 1:
                raise InputError(
                    f"{paths[1]}: found a second file of case {case}, beside {paths[0].relative_to(self.directory)}; expected one "
                    "label map for each case; take the others out of the folder"
                )
        return {case: paths[0] for case, paths in found.items()}


def load(path: Path) -> PlainFolder | None:
    """The label maps below `path`; None if there is none. Hidden folders, such as a trash can, do not count."""
    named = (one for one in path.rglob("*.nii*") if _stem(one.name) and not _is_hidden(one.relative_to(path)))
    files = sorted(one for one in named if not one.is_dir())  # mirrors have folders <case>_seg.nii with a file in each
    for one in files:
        pseudonyms.know_path(one, path)
        pseudonyms.know_path(one.parent, path)
        pseudonyms.know([one.name], "file")
    return PlainFolder(directory=path, label=path.resolve().name, files=tuple(files)) if files else None


def _is_hidden(relative: Path) -> bool:
    """Whether an operating system hides a path, or has put it there."""
    return any(part.startswith(".") or part == "__MACOSX" for part in relative.parts)


def _stem(name: str) -> str | None:
    return next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), None)


_END = re.compile(r"\d{3,}(?:-\d{3,})?")
"""The end of a case's name by which a challenge knows it: patient and visit, or a number of at least three digits."""
_OTHER_CASE = re.compile(r"brats|tcga", re.IGNORECASE)


def _case_of(relative: Path, words: Mapping[str, re.Pattern[str]], ends: Mapping[str, str], path: Path) -> str | None:
    """The case that a file belongs to; None if there is none.

    It is the case with the longest id in the file's name, or else in the names of its folders, or else the one whose id has the
    same end, unless the name is that of a case of another data set.
    """
    stem = _stem(relative.name) or ""
    for text in (stem, *reversed(relative.parts[:-1])):
        inside = [one for one, word in words.items() if one in text and word.search(text)]
        longest = [one for one in inside if len(one) == max(map(len, inside))]
        if len(longest) > 1:
            raise InputError(
                f"{path}: found a name that fits cases {longest[0]} and {longest[1]}; expected that of one case; rename it"
            )
        if longest:
            return longest[0]
    end = re.search(rf"(?<![\d-])({_END.pattern})(?:[_-]seg)?$", stem)
    return ends.get(end[1]) if end and not _OTHER_CASE.search(stem[: end.start()]) else None


def _unique_ends(ids: list[str]) -> dict[str, str]:
    """The digits at the end of a case's name, such as 00000-000 -> the case; ends that several cases share are left out."""
    owners: dict[str, list[str]] = defaultdict(list)
    for case in ids:
        if end := re.search(rf"(?<!\d){_END.pattern}$", case):
            owners[end[0]].append(case)
    return {end: cases[0] for end, cases in owners.items() if len(cases) == 1}
