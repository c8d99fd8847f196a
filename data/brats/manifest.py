"""Manifests: a table that describes a data set of any layout, given instead of the folder.

    case,t1,t1ce,flair,t2,truth,patient                       manifest.csv; truth and patient may be left out, or empty
    anna-1,anna/t1.nii.gz,anna/gd.nii.gz,anna/fl.nii.gz,anna/t2.nii.gz,anna/tumour.nii.gz,anna

    [{"case": "anna-1", "t1": "anna/t1.nii.gz", ...}]         manifest.json with the same content
    {"labels": "brats2021", "cases": [...]}                   or with labels: the name of a schema, or a definition
                                                              (see `lms3d.data.brats.definition`)

A modality that no case has is empty in every row, and filled with zeros. Paths start at the folder of the manifest. Every mistake
is a DataError with the number of the row, as a spreadsheet counts rows (the head is row 1), or in JSON with that of the object.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lms3d.common.json_values import decoded, parse
from lms3d.data import pseudonyms
from lms3d.data.brats import definition
from lms3d.data.brats.case import Case
from lms3d.data.brats.header import ENDINGS
from lms3d.data.brats.schema import CHANNELS, LabelSchema, schema_named
from lms3d.data.errors import DataError
from lms3d.data.files import delimiter

SUFFIXES = (".csv", ".json")
_NEEDED = ("case", *CHANNELS)
_COLUMNS = (*_NEEDED, "truth", "patient")
_ID = re.compile(r"\w[\w.+=@ -]{0,150}")  # a case id becomes the name of folders and files

Row = tuple[str, Mapping[str, Any]]
"""("row 2", column -> value)"""


def is_manifest(path: Path) -> bool:
    """Whether a path is a file with the ending of a manifest."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def read(path: Path) -> tuple[list[Case], LabelSchema | None]:
    """The cases, and the schema of their labels, or None if the manifest does not name one."""
    try:
        text = decoded(path.read_bytes())
        rows, labels = _csv(path, text) if path.suffix.lower() == ".csv" else _json(path, text)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise (
            error
            if isinstance(error, DataError)
            else _wrong(path, f"a file that cannot be read ({error})", "a table with commas, or JSON")
        ) from None
    seen: dict[str, str] = {}
    cases = []
    for _, row in rows:
        _know(path, row)
    absent = tuple(channel for channel in CHANNELS if not any(row.get(channel) for _, row in rows))
    for number, row in rows:
        case = _case(path, number, row, absent if len(absent) < len(CHANNELS) else ())
        if case.id in seen:
            raise _wrong(path, f"case {case.id} in {number} and in {seen[case.id]}", "every case once")
        seen[case.id] = number
        cases.append(case)
    if not cases:
        raise _wrong(path, "no case", "a row for each")
    return cases, None if labels is None else _schema(path, labels)


def _csv(path: Path, text: str) -> tuple[list[Row], None]:
    table = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter(text))
    head = [name.strip() for name in next(table, [])]
    _require_columns(path, "row 1", head)
    return list(_filled(path, head, table)), None


def _filled(path: Path, head: list[str], table: Any) -> Iterator[Row]:
    for number, cells in enumerate(table, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(head):
            raise _wrong(path, f"{len(cells)} cells in row {number}", f"{len(head)} as in row 1")
        yield f"row {number}", {name: cell.strip() for name, cell in zip(head, cells, strict=True)}


def _json(path: Path, text: str) -> tuple[list[Row], Any]:
    value = parse(text)
    content = value if isinstance(value, dict) else {"cases": value}
    if unknown := sorted(set(content) - {"labels", "cases"}):
        raise _wrong(path, f"key {unknown[0]!r}", '"cases" and "labels"')
    rows = content.get("cases")
    if not isinstance(rows, list):
        raise _wrong(path, "no list of cases", 'a list of objects, or {"labels": ..., "cases": [...]}')
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise _wrong(path, f"{type(row).__name__} in row {number}", "an object")
        _require_columns(path, f"row {number}", list(row))
    return [(f"row {number}", row) for number, row in enumerate(rows, start=1)], content.get("labels")


def _require_columns(path: Path, number: str, names: list[str]) -> None:
    """DataError for a column that is missing, unknown or repeated."""
    for name in (*_NEEDED, *names):
        if names.count(name) != 1 or name not in _COLUMNS:
            what = {0: "no"}.get(names.count(name), "unknown" if name not in _COLUMNS else "more than one")
            raise _wrong(path, f"{what} column {name!r} in {number}", ", ".join(_COLUMNS))


def _case(path: Path, number: str, row: Mapping[str, Any], absent: Sequence[str]) -> Case:
    """The case of a row. absent: the modalities that no row has. A modality that only this row lacks is the case's `problem`."""
    for name, value in row.items():
        if not (isinstance(value, str) or (value is None and name != "case")):
            raise _wrong(path, f"{value!r} as {name} in {number}", "text")
    if not row["case"]:
        raise _wrong(path, f"no case in {number}", "a name")
    missing = [channel for channel in CHANNELS if not row[channel] and channel not in absent]
    if not _ID.fullmatch(row["case"]):
        raise _wrong(
            path, f"case {row['case']!r} in {number}", "a name of letters, digits, - _ . + = @ that can name a file"
        )
    named = [name for name in (*CHANNELS, "truth") if row.get(name)]
    files = {name: _file(path, number, name, row[name]) for name in named}
    if len(set(files.values())) < len(files):
        raise _wrong(path, f"one file twice in {number}", "a file of its own for each modality and the truth")
    if len(missing) == len(CHANNELS):
        raise _wrong(path, f"no {missing[0]} in {number}", "a path")
    problems = [_wrong(path, f"no {channel} in {number}", "a path, as in other rows") for channel in missing]
    problems += [
        _wrong(path, f"no file {row[name]!r} for {name} in {number}", f"a path that starts at {path.absolute().parent}")
        for name in named
        if not _is_file(files[name])
    ]
    problem = f"{problems[0]}, or leave the case out (python -m lms3d.data.prepare DATA --skip-bad)" if problems else ""
    images = {channel: files[channel] for channel in CHANNELS if channel in files}
    return Case(
        id=row["case"], images=images, truth=files.get("truth"), patient=row.get("patient") or "", absent=tuple(absent),
        problem=problem,
    )  # fmt: skip


def _know(path: Path, row: Mapping[str, Any]) -> None:
    """Registers the names of a row for `pseudonyms`, before an error message can contain them."""
    pseudonyms.know([row.get("case") or "", row.get("patient") or ""])
    for value in (row.get(name) for name in (*CHANNELS, "truth")):
        if isinstance(value, str) and value:
            pseudonyms.know([value], "file")
            file = path.absolute().parent / value
            for known in (file, file.parent) if file.parent != path.absolute().parent else (file,):
                pseudonyms.know_path(known, path.parent)


def _file(path: Path, number: str, name: str, value: str) -> Path:
    file = path.absolute().parent / value
    if not value.endswith(ENDINGS) or "\0" in value:
        raise _wrong(path, f"{name} {value!r} in {number}", "a file that ends in .nii or .nii.gz")
    return file


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _schema(path: Path, labels: Any) -> LabelSchema:
    if isinstance(labels, str):
        return schema_named(labels, where=str(path))
    return definition.define(labels, where=str(path))


def _wrong(path: Path, found: str, expected: str) -> DataError:
    return DataError(f"{path}: found {found}; expected {expected}; correct the manifest")
