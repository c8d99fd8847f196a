"""Finds the patient of each case. A patient may have several visits, and be in the data sets of several years. A network recognises
a brain that it has seen, so the same patient must not both train and validate.

Three sources are combined:
ids       From 2023 on, a case id ends in the number of the visit. Ids of 2017-2019 keep the name in the hospital's own set.
tables    A row of name_mapping.csv of BraTS 2018-2020 has the ids of one patient in all years.
images    Files with equal checksums are of one patient; once preprocessed, so are volumes with equal checksums, whatever the
headers.

Another data set may use another of these names for the patient, or only have the image. `Case.known_as` has all names.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d.common.json_values import decoded
from lms3d.data.errors import DataError
from lms3d.data.files import delimiter
from lms3d.data.volumes.header import GZIP, is_gzip, open_bytes

if TYPE_CHECKING:
    from lms3d.data.volumes.case import Case

_PATIENTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"^(BraTS-[A-Za-z]+-\d+)-\d+$",  # BraTS-GLI-00005-100: the last number counts visits
        r"^(TCGA-\w\w-\w{4})",  # TCGA-02-0006_1996.08.23
        r"(?i)^brats1[789]_([a-z]+|2013)\d*_(\w+)_\d+$",  # Brats17_TCIA_167_1 is Brats18_TCIA08_167_1
    )
)

_PUBLISHED = re.compile(r"(?i)brats|tcga-")

TABLES = ("name_mapping.csv", "name_mapping_validation_data.csv")
_ABOVE = 2  # a table may lie in so many folders above the one that the user named, and above a case
# Columns of 2020: Grade,BraTS_2017_subject_ID,BraTS_2018_subject_ID,TCGA_TCIA_subject_ID,BraTS_2019_subject_ID,
# BraTS_2020_subject_ID, with NA for a missing id. Tables of earlier years have only the columns up to their year.
_ID_COLUMN = re.compile(r"^(BraTS_20\d\d|TCGA_TCIA)_subject_ID$", re.IGNORECASE)
_SAMPLE_BYTES = 4096
_GRADES = ("HGG", "LGG")
_GRADE_FOLDERS = re.compile(r"^(?:(HGG|LGG)|Pre-operative_TCGA_(?:(GBM)|LGG)_.*)$", re.IGNORECASE)


def patient_of(case_id: str) -> str:
    """The patient that an id names; the id itself if it names none."""
    for pattern in _PATIENTS:
        if match := pattern.match(case_id):
            return "_".join(match.groups())
    return case_id


def grade_of(folder: Path) -> str | None:
    """ "HGG" or "LGG", if the path says so; the nearest folder counts. TCGA-GBM holds glioblastomas, which are HGG."""
    for part in reversed(folder.parts):
        if match := _GRADE_FOLDERS.match(part):
            return (match.group(1) or ("HGG" if match.group(2) else "LGG")).upper()
    return None


def joined(cases: Sequence[Case], root: Path) -> list[Case]:
    """The cases with their patients, all names of these, and the grades that are known, also from the tables in and above `root`.
    Cases with the same first image are one patient, as copies under another name are common.

    root: the folder of the data set, or its manifest.
    """
    groups = _Groups()
    for case in cases:  # an id of the challenge always means the same patient, whatever a manifest says
        groups.join([case.patient, *([patient_of(case.id)] if _PUBLISHED.match(case.id) else [])])
    grades: dict[str, str] = {}
    for row in _rows(_tables(cases, root)):
        ids = [value for name, value in row.items() if _ID_COLUMN.match(name) and value not in ("", "NA")]
        groups.join(patient_of(case_id) for case_id in ids)
        grades |= {case_id: row.get("Grade", "").upper() for case_id in ids}
    for same in _same_images(cases):
        groups.join(same)
    known = {case_id: grade for case_id, grade in grades.items() if grade in _GRADES}
    marks: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        marks[groups.name(case.patient)] |= _marks(case)
    names = groups.members()
    return [
        replace(
            case, patient=name, known_as=tuple(sorted(names[name] | marks[name])), grade=case.grade or known.get(case.id)
        )
        for case in cases
        for name in [groups.name(case.patient)]
    ]  # fmt: skip


def of_one_brain(cases: Sequence[Case], alike: Iterable[Iterable[str]]) -> list[Case]:
    """The cases, with one patient for each group of ids in `alike`. The patient has all names of the group."""
    groups = _Groups()
    patient_of_id = {case.id: case.patient for case in cases}
    for ids in alike:
        groups.join(patient_of_id[case_id] for case_id in ids)
    known_as: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        known_as[groups.name(case.patient)] |= {case.patient, *case.known_as}
    return [replace(case, patient=name, known_as=tuple(sorted(known_as[name])))
            for case in cases for name in [groups.name(case.patient)]]  # fmt: skip


class _Groups:
    """Groups of names that mean the same patient. The smallest name stands for its group."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def name(self, member: str) -> str:
        while (above := self._above.get(member, member)) != member:
            member = above
        return member

    def members(self) -> Mapping[str, set[str]]:
        """Name -> all names that mean the same."""
        groups: dict[str, set[str]] = defaultdict(set)
        for member in list(self._above):
            groups[self.name(member)].add(member)
        return groups

    def join(self, members: Iterable[str]) -> None:
        names = sorted({self.name(member) for member in members})
        self._above |= dict.fromkeys(names, names[0]) if names else {}


def _tables(cases: Sequence[Case], root: Path) -> list[Path]:
    """The tables in the folders of the cases, in the folders above them up to `root`, and a little further up."""
    root = Path(os.path.abspath(root))
    root = root if root.is_dir() else root.parent
    within = {Path(os.path.abspath(case.files[0].parent)) for case in cases}
    between = (above for folder in within for above in folder.parents if root in above.parents)
    near = (above for folder in within for above in folder.parents[:_ABOVE])  # a manifest's cases may lie anywhere
    folders = {root, *root.parents[:_ABOVE], *within, *between, *near}
    return [folder / name for folder in sorted(folders) for name in TABLES if (folder / name).is_file()]


def _rows(tables: Iterable[Path]) -> Iterator[Mapping[str, str]]:
    for path in tables:
        try:
            text = decoded(path.read_bytes())
            for row in csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter(text)):
                yield {(name or "").strip(): (value or "").strip() for name, value in row.items() if name}
        except (OSError, ValueError, csv.Error) as error:
            raise DataError(
                f"{path}: found a table that cannot be read ({error}); expected text with commas that tells which cases "
                "are the same patient; restore it, or take it away"
            ) from None


def _same_images(cases: Sequence[Case]) -> list[set[str]]:
    """Groups of patients that share a first image."""
    patients: dict[tuple[int, int] | None, set[str]] = defaultdict(set)
    for alike in _alike(cases):
        for case in alike:
            patients[_checksum(case.files[0])].add(case.patient)
    patients.pop(None, None)
    return [names for names in patients.values() if len(names) > 1]


def _alike(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Yields groups of cases whose first images may be equal. An uncompressed image whose middle differs from all others is left
    out, and need not be read as a whole."""
    for same_length in _grouped(cases, _length):
        if all(_is_gzip(case.files[0]) for case in same_length):  # their last bytes are checksums
            yield same_length
        else:
            yield from _grouped(same_length, _middle)


def _grouped(cases: Iterable[Case], fact: Callable[[Path], object]) -> list[list[Case]]:
    """Groups of cases that share a fact about their first image."""
    groups: dict[object, list[Case]] = defaultdict(list)
    for case in cases:
        groups[fact(case.files[0])].append(case)
    return [alike for alike in groups.values() if len(alike) > 1]


def _is_gzip(path: Path) -> bool:
    """Whether the file exists and is compressed."""
    try:
        return is_gzip(path)
    except OSError:  # it is reported when the image is read
        return False


def _length(path: Path) -> int:
    """The length of the uncompressed content, modulo 2^32 as in gzip; 0 for a file that cannot be read."""
    try:
        with open_bytes(path) as stream:
            compressed = stream.read(len(GZIP)) == GZIP
            size = stream.seek(0, os.SEEK_END)
            if compressed:
                stream.seek(max(0, size - 4))
                return int.from_bytes(stream.read(4), "little")
            return size % 2**32
    except OSError:  # it is reported when the image is read
        return 0


def _middle(path: Path) -> bytes:
    """Uncompressed bytes from the middle of the head, where no two scans are equal; none for a file that cannot be read."""
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as stream:
            stream.seek(_length(path) // 2)
            return stream.read(_SAMPLE_BYTES)
    except (OSError, EOFError, zlib.error):  # it is reported when the image is read
        return b""


def _marks(case: Case) -> set[str]:
    """The mark of the case's first image, as text. None for an uncompressed file, which would have to be read as a whole."""
    mark = _checksum(case.files[0]) if _is_gzip(case.files[0]) else None
    return {f"image {mark[0]:08x} {mark[1]}"} if mark else set()


def _checksum(path: Path) -> tuple[int, int] | None:
    """The CRC-32 and the length of the uncompressed content, with which a gzip file ends. None if it is empty or cannot be read."""
    try:
        if not is_gzip(path):
            content = path.read_bytes()
            return (zlib.crc32(content), len(content) % 2**32) if content else None
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 8))
            last = stream.read(8)
    except OSError:  # it is reported when the image is read
        return None
    size = int.from_bytes(last[4:], "little")
    return (int.from_bytes(last[:4], "little"), size) if size else None
