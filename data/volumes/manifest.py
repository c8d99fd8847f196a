"""Manifests: a table that describes the files of a data set of any layout, given instead of the folder.

    case,t1,t1ce,flair,t2,truth,patient                       manifest.csv; truth and patient may be left out, or empty
    anna-1,anna/t1.nii.gz,anna/gd.nii.gz,anna/fl.nii.gz,anna/t2.nii.gz,anna/tumour.nii.gz,anna

    [{"case": "anna-1", "t1": "anna/t1.nii.gz", ...}]         manifest.json with the same content
    {..., "cases": [...]}                                     or with what else the kind of data set needs

There is a column for each channel. Paths start at the folder of the manifest. Every mistake is a DataError with the number of the
row, as a spreadsheet counts rows (the head is row 1), or in JSON with that of the object.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms3d.common.json_values import decoded, parse
from lms3d.data import pseudonyms
from lms3d.data.errors import DataError
from lms3d.data.files import delimiter
from lms3d.data.volumes.case import Case
from lms3d.data.volumes.header import ENDINGS

SUFFIXES = (".csv", ".json")
ID = re.compile(r"\w[\w.+=@ -]{0,150}")  # a case id becomes the name of folders and files

ID_IN_WORDS = "a name of letters, digits, - _ . + = @ that can name a file"

Row = tuple[str, Mapping[str, Any]]
"""("row 2", column -> value)"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The content of a manifest."""

    path: Path
    rows: list[Row]
    heads: list[tuple[str, list[str]]]
    """("row 1", names of the columns) wherever names are stated: in a CSV once, in JSON in each row."""
    more: Mapping[str, Any]
    """What a JSON manifest holds besides "cases"."""


def is_manifest(path: Path) -> bool:
    """Whether a path is a file with the ending of a manifest."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def read(path: Path, keys: Sequence[str]) -> Table:
    """The table in a file. keys: what a JSON manifest may hold besides "cases"."""
    try:
        text = decoded(path.read_bytes())
        return _csv(path, text) if path.suffix.lower() == ".csv" else _json(path, text, keys)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise (
            error
            if isinstance(error, DataError)
            else wrong(path, f"a file that cannot be read ({error})", "a table with commas, or JSON")
        ) from None


def cases(table: Table, channels: Sequence[str], *, may_be_absent: bool = False, blanks: bool = False) -> list[Case]:
    """The cases of a table with a column for each channel.

    may_be_absent: whether a channel that is empty in every row counts as absent (`Case.absent`). blanks: see `Case`.
    """
    path = table.path
    for number, names in table.heads:
        _require_columns(path, number, names, channels)
    for _, row in table.rows:
        _know(path, row, channels)
    absent = tuple(channel for channel in channels if not any(row.get(channel) for _, row in table.rows))
    absent = absent if may_be_absent and len(absent) < len(channels) else ()
    seen: dict[str, str] = {}
    found = []
    for number, row in table.rows:
        case = _case(path, number, row, channels, absent, blanks)
        if case.id in seen:
            raise wrong(path, f"case {case.id} in {number} and in {seen[case.id]}", "every case once")
        seen[case.id] = number
        found.append(case)
    if not found:
        raise wrong(path, "no case", "a row for each")
    return found


def _csv(path: Path, text: str) -> Table:
    table = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter(text))
    head = [name.strip() for name in next(table, [])]
    return Table(path=path, rows=list(_filled(path, head, table)), heads=[("row 1", head)], more={})


def _filled(path: Path, head: list[str], table: Any) -> Iterator[Row]:
    for number, cells in enumerate(table, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(head):
            raise wrong(path, f"{len(cells)} cells in row {number}", f"{len(head)} as in row 1")
        yield f"row {number}", {name: cell.strip() for name, cell in zip(head, cells, strict=True)}


def _json(path: Path, text: str, keys: Sequence[str]) -> Table:
    value = parse(text)
    content = value if isinstance(value, dict) else {"cases": value}
    if unknown := sorted(set(content) - {*keys, "cases"}):
        raise wrong(path, f"key {unknown[0]!r}", " and ".join(f'"{key}"' for key in ("cases", *keys)))
    rows = content.get("cases")
    if not isinstance(rows, list):
        raise wrong(path, "no list of cases", 'a list of objects, or {"labels": ..., "cases": [...]}')
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise wrong(path, f"{type(row).__name__} in row {number}", "an object")
    numbered = [(f"row {number}", row) for number, row in enumerate(rows, start=1)]
    more = {key: value for key, value in content.items() if key != "cases"}
    return Table(path=path, rows=numbered, heads=[(number, list(row)) for number, row in numbered], more=more)


def _require_columns(path: Path, number: str, names: list[str], channels: Sequence[str]) -> None:
    """DataError for a column that is missing, unknown or repeated."""
    needed = ("case", *channels)
    columns = (*needed, "truth", "patient")
    for name in (*needed, *names):
        if names.count(name) != 1 or name not in columns:
            what = {0: "no"}.get(names.count(name), "unknown" if name not in columns else "more than one")
            raise wrong(path, f"{what} column {name!r} in {number}", ", ".join(columns))


def _case(
    path: Path, number: str, row: Mapping[str, Any], channels: Sequence[str], absent: Sequence[str], blanks: bool
) -> Case:
    """The case of a row. absent: the modalities that no row has. A modality that only this row lacks is the case's `problem`."""
    for name, value in row.items():
        if not (isinstance(value, str) or (value is None and name != "case")):
            raise wrong(path, f"{value!r} as {name} in {number}", "text")
    if not row["case"]:
        raise wrong(path, f"no case in {number}", "a name")
    missing = [channel for channel in channels if not row[channel] and channel not in absent]
    if not ID.fullmatch(row["case"]):
        raise wrong(path, f"case {row['case']!r} in {number}", ID_IN_WORDS)
    named = [name for name in (*channels, "truth") if row.get(name)]
    files = {name: _file(path, number, name, row[name]) for name in named}
    if len(set(files.values())) < len(files):
        raise wrong(path, f"one file twice in {number}", "a file of its own for each modality and the truth")
    if len(missing) == len(channels):
        raise wrong(path, f"no {missing[0]} in {number}", "a path")
    problems = [wrong(path, f"no {channel} in {number}", "a path, as in other rows") for channel in missing]
    problems += [
        wrong(path, f"no file {row[name]!r} for {name} in {number}", f"a path that starts at {path.absolute().parent}")
        for name in named
        if not _is_file(files[name])
    ]
    problem = f"{problems[0]}, or leave the case out (python -m lms3d.data.prepare DATA --skip-bad)" if problems else ""
    images = {channel: files[channel] for channel in channels if channel in files}
    return Case(
        id=row["case"], images=images, channels=tuple(channels), truth=files.get("truth"), patient=row.get("patient") or "",
        absent=tuple(absent), blanks=blanks,
        problem=problem,
    )  # fmt: skip


def _know(path: Path, row: Mapping[str, Any], channels: Sequence[str]) -> None:
    """Registers the names of a row for `pseudonyms`, before an error message can contain them."""
    pseudonyms.know([row.get("case") or "", row.get("patient") or ""])
    for value in (row.get(name) for name in (*channels, "truth")):
        if isinstance(value, str) and value:
            pseudonyms.know([value], "file")
            file = path.absolute().parent / value
            for known in (file, file.parent) if file.parent != path.absolute().parent else (file,):
                pseudonyms.know_path(known, path.parent)


def _file(path: Path, number: str, name: str, value: str) -> Path:
    file = path.absolute().parent / value
    if not value.endswith(ENDINGS) or "\0" in value:
        raise wrong(path, f"{name} {value!r} in {number}", "a file that ends in .nii or .nii.gz")
    return file


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def wrong(path: Path, found: str, expected: str) -> DataError:
    """A mistake in a manifest."""
    return DataError(f"{path}: found {found}; expected {expected}; correct the manifest")
