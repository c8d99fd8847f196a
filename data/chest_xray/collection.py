"""Reads the tables and folders of ChestX-ray14 (NIH, 112,120 radiographs of 30,805 patients). It looks at no pixels.

    <root>/Data_Entry_2017.csv          Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,
                                        View Position,OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],
    <root>/train_val_list.txt           the official lists of image names; both or neither
    <root>/test_list.txt
    <root>/images_001/images/00000001_000.png       ... images_012; folders are searched to any depth

The brackets in the header hold commas, and the header ends with one. Read as CSV it has twelve columns, as every row has.
A finding is one of FINDINGS. Several are joined by `|`; `No Finding` stands alone.

Faults of a data set are collected as problems, each with the image that it affects. The caller either stops at the first
(training), or lists all and leaves these images out (`--skip-bad`).
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lms3d.common.json_values import decoded
from lms3d.data import pseudonyms
from lms3d.data.errors import DataError
from lms3d.data.files import delimiter, readable_directory

FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax"),
    *("Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
"""The classes, in the order of the paper (Wang et al. 2017) and of every published table."""

NO_FINDING = "No Finding"
TABLE, TRAINING_LIST, TEST_LIST = "Data_Entry_2017.csv", "train_val_list.txt", "test_list.txt"

_TABLES = (TABLE, "Data_Entry_2017_v2020.csv")  # the second is NIH's corrected one of 2020, with the same columns
_NAME, _LABELS, _PATIENT = "Image Index", "Finding Labels", "Patient ID"
_TAIL_BYTES = 64
_WORD = re.compile(r"[^\s,;\"']+")
_LEAVE_OUT = "mend it, or leave it out (python -m lms3d.data.prepare DATA --skip-bad)"


@dataclass(frozen=True, kw_only=True)
class Radiograph:
    """One image and what the table says about it."""

    name: str
    """The file name, which is the key of all tables."""
    path: Path
    patient: str
    findings: tuple[str, ...]
    """Some of FINDINGS, in their order; empty for `No Finding`."""


@dataclass(frozen=True, kw_only=True)
class ImageProblem:
    """A reason to leave an image out."""

    image: str
    """The file name of the image."""
    line: str
    """The text of an error message."""


@dataclass(frozen=True, kw_only=True)
class Collection:
    """A data set, as its tables and folders describe it."""

    root: Path
    images: Mapping[str, Radiograph]
    """Name -> radiograph, sorted by name, without the images that have a problem."""
    test: frozenset[str] | None
    """The names in the official test list; None if there are no lists."""
    problems: tuple[ImageProblem, ...]
    """The faults, in the order in which they were found."""
    fingerprint: str
    """A digest of all files, sound or not, in hexadecimal. It does not depend on where the folder lies."""


def is_chest_xray(root: str | Path) -> bool:
    """Whether `root` holds the table of ChestX-ray14. False if it cannot be read; whoever reads it later reports the reason."""
    return any(os.path.isfile(Path(root).expanduser() / name) for name in _TABLES)


def find_images(root: str | Path) -> Collection:
    """The data set at `root`, with its problems. DataError if it cannot be read at all."""
    root = readable_directory(root)
    problems: list[ImageProblem] = []
    table = _table(root)
    files = _image_files(root, problems)
    images = dict(sorted(_radiographs(table, files, problems)))
    training, test = (_list(root / name) for name in (TRAINING_LIST, TEST_LIST))
    if (training is None) != (test is None):
        present, absent = (TRAINING_LIST, TEST_LIST) if test is None else (TEST_LIST, TRAINING_LIST)
        raise DataError(f"{root}: found {present} alone; expected {absent} beside it; add it, or remove both")
    if training is not None and test is not None:
        _check_lists(root, training, test, images, problems)
    bad = {problem.image for problem in problems}
    images = {name: image for name, image in images.items() if name not in bad}
    if not images and not problems:
        raise DataError(f"{table}: found no image; expected a row per image; give the folder of the data set")
    return Collection(
        root=root, images=images, test=None if test is None else frozenset(test), problems=tuple(problems),
        fingerprint=_fingerprint(root, table, files),
    )  # fmt: skip


def require_sound(problems: Sequence[ImageProblem]) -> None:
    """DataError with the first problem and the number of others, if there are problems."""
    if problems:
        others = f" ({len(problems) - 1} more like this or of other kinds)" if len(problems) > 1 else ""
        raise DataError(problems[0].line + others)


def _table(root: Path) -> Path:
    for name in _TABLES:
        if (root / name).is_file():
            return root / name
    raise DataError(
        f"{root}: found no {TABLE}; expected the folder of ChestX-ray14; give the folder that holds the table"
    )


def _image_files(root: Path, problems: list[ImageProblem]) -> dict[str, Path]:
    """Name -> file, for all PNGs below `root`."""
    paths: dict[str, Path] = {}
    for folder, below, names in os.walk(root, followlinks=True):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.lower().endswith(".png") or name.startswith("."):
                continue
            path = Path(folder, name)
            pseudonyms.know([path.stem], "image")
            if name in paths:
                expected = f"it once, and it is also in {paths[name].parent}"
                problems.append(_problem(name, path, f"a second file of the name {name}", expected, "remove one copy"))
            paths.setdefault(name, path)
    return paths


def _radiographs(
    table: Path, files: Mapping[str, Path], problems: list[ImageProblem]
) -> Iterator[tuple[str, Radiograph]]:
    """Yields (name, radiograph) for the rows of the table that have an image and known labels."""
    seen: set[str] = set()
    for line, row in _rows(table):
        name, where = row[_NAME], f"{table}, line {line}"
        pseudonyms.know([Path(name).stem], "image")
        pseudonyms.know([row[_PATIENT]], "patient")
        if name in seen:
            problems.append(_problem(name, where, f"{name} a second time", "a row per image", "remove one row"))
            continue
        seen.add(name)
        try:
            findings = parse_findings(row[_LABELS])
        except ValueError as error:
            problems.append(_problem(name, where, f"{error} for {name}", f"{NO_FINDING!r} alone, or any of "
                                     f"{', '.join(FINDINGS)}, joined by |", _LEAVE_OUT))  # fmt: skip
            continue
        if name not in files:
            problems.append(_problem(name, where, f"{name}, which is not in {table.parent} or a folder below",
                                     "a file for every row", "unpack all archives, or leave it out (--skip-bad)"))  # fmt: skip
            continue
        yield name, Radiograph(name=name, path=files[name], patient=row[_PATIENT], findings=findings)
    for name in sorted(set(files) - seen):
        problems.append(_problem(name, files[name], f"an image without a row in {table.name}", "one", _LEAVE_OUT))


def _rows(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line, row) of the table. Only the three columns that are used must exist."""
    try:
        text = decoded(table.read_bytes())
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter(text))
        if missing := [column for column in (_NAME, _LABELS, _PATIENT) if column not in (reader.fieldnames or ())]:
            raise DataError(
                f"{table}: found no column {missing[0]!r}; expected the columns {_NAME}, {_LABELS} and "
                f"{_PATIENT}; restore the table"
            )
        for row in reader:
            values = {column: (row[column] or "").strip() for column in (_NAME, _LABELS, _PATIENT)}
            if not all(values.values()):
                raise DataError(
                    f"{table}, line {reader.line_num}: found a row that ends early; expected image, labels and "
                    "patient; restore the table"
                )
            yield reader.line_num, values
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table}: found a table that cannot be read ({error}); expected CSV; restore it") from None


def parse_findings(text: str) -> tuple[str, ...]:
    """The findings in a text such as `Effusion|Mass`, in the order of FINDINGS. ValueError, which says what was found, for any
    other text."""
    labels = text.split("|")
    if labels == [NO_FINDING]:
        return ()
    if unknown := [label for label in labels if label not in FINDINGS]:
        raise ValueError(f"{NO_FINDING!r} beside a finding" if unknown[0] == NO_FINDING else f"label {unknown[0]!r}")
    if len(set(labels)) < len(labels):
        raise ValueError(f"label {Counter(labels).most_common(1)[0][0]!r} twice")
    return tuple(label for label in FINDINGS if label in labels)


def _list(path: Path) -> list[str] | None:
    """The names in an official list; None if there is no such file. Some lists have labels after each name, or a folder before it.
    Of each line the words that end in .png count; if there are none, its first word."""
    try:
        lines = (_WORD.findall(line) for line in decoded(path.read_bytes()).splitlines())
        names = ([word for word in words if word.lower().endswith(".png")] or words[:1] for words in lines)
        return [Path(name).name for line in names for name in line]
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: found {error}; expected a list of image names; restore it") from None


def _check_lists(
    root: Path, training: list[str], test: list[str], images: Mapping[str, Radiograph], problems: list[ImageProblem]
) -> None:
    """Adds a problem for each image that is not in exactly one list, each listed name without an image, and each patient in both
    lists."""
    known = set(images) | {problem.image for problem in problems}
    listed: dict[str, str] = {}
    for file, names in ((TRAINING_LIST, training), (TEST_LIST, test)):
        for name in names:
            pseudonyms.know([Path(name).stem], "image")
            if name in listed:
                expected = f"it in one list, once, and it is already in {listed[name]}"
                problems.append(_problem(name, root / file, f"{name}", expected, _LEAVE_OUT))
            elif name not in known:
                problems.append(_problem(name, root / file, f"{name}, which has no row in the table",
                                         "names of images that are there", _LEAVE_OUT))  # fmt: skip
            listed.setdefault(name, file)
    for name in images:
        if name not in listed:
            problems.append(_problem(name, images[name].path, "an image in no list",
                                     f"it in {TRAINING_LIST} or {TEST_LIST}", _LEAVE_OUT))  # fmt: skip
    tested = {images[name].patient for name in set(test) - set(training) if name in images}
    for name in sorted(set(training) - set(test)):
        if name in images and images[name].patient in tested:
            problems.append(_problem(name, root / TRAINING_LIST, f"{name} of patient {images[name].patient}, who is "
                                     "in the test list too", "every patient in one list", _LEAVE_OUT))  # fmt: skip


def _problem(image: str, where: str | Path, found: str, expected: str, advice: str) -> ImageProblem:
    return ImageProblem(image=image, line=str(DataError(f"{where}: found {found}; expected {expected}; {advice}")))


def _fingerprint(root: Path, table: Path, files: Mapping[str, Path]) -> str:
    """A digest of the tables, and of each image's name, size and last bytes, which hold the checksum of all its pixels."""
    digest = hashlib.sha256()
    for path in (table, root / TRAINING_LIST, root / TEST_LIST):
        digest.update(path.read_bytes() if path.is_file() else b"none")
    for name, path in sorted(files.items()):
        try:
            with path.open("rb") as stream:
                size = stream.seek(0, 2)
                stream.seek(max(0, size - _TAIL_BYTES))
                digest.update(f"{name} {size} ".encode(errors="surrogateescape") + stream.read())
        except OSError as error:
            raise DataError(
                f"{path}: found {error.strerror}; expected a readable file; check its permissions"
            ) from None
    return digest.hexdigest()
