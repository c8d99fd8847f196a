"""Pseudonyms for the names of cases, patients and images, for what people paste and publish (`--anonymous`).

`start` puts a filter before stdout and stderr, so that progress, messages, tracebacks and warnings pass through one door; tables
and figures ask `of`. Readers tell names as soon as they find them (`know`, `know_path`, `know_case`), before anything can be wrong.

NAMES-1  A pseudonym is a keyed digest: the same on this machine in every command, and nobody without the key can try names.
         The key lies in the cache folder, with mode 0600; whoever has it and the data can list names (`data.prepare --pseudonyms`).
NAMES-2  A name is replaced where it stands as a whole word; below a data set's folder each part of a path is replaced.
NAMES-3  What programs read again (split.json, predictions.json, predictions.csv, files of predictions, caches) keeps names.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import sys
from collections.abc import Iterable
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data import files
from data.errors import DataError
from lms3d.common.disk import cache_directory

if TYPE_CHECKING:
    from data.brats.case import Case

_VARIABLE = "LMS3D_ANONYMOUS"  # processes that this one starts do the same
_KEY_BYTES, _DIGITS = 32, 10
_LONGEST_SECONDS = 60.0  # that another process takes to make a key
_SHORT = 4  # a number of so few digits is replaced only where it is named as a case: it may be any figure
_WORDS = ("case ", "image ", "patient ", "cases ", "found ", "'", '"', "/", "such as ", ", ")
_STARTS = re.compile(r"(?<![^\W_])|(?=[\W_])")

_known: dict[str, str] = {}
_lengths: list[int] = []


def start(anonymous: bool = True) -> None:
    """Hides names from now on, for as long as this process and those that it starts live; also where a parent asked for it."""
    if not (anonymous or os.environ.get(_VARIABLE)):
        return
    _key()  # what is wrong with it is told now
    os.environ[_VARIABLE] = "1"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # native code writes past the filter
    for name in ("stdout", "stderr"):
        if not isinstance(getattr(sys, name), _Filtered):
            setattr(sys, name, _Filtered(getattr(sys, name)))


def forget() -> None:
    """All names and the key that were known to this process. For tests."""
    _known.clear()
    _lengths.clear()
    _key.cache_clear()


def is_on() -> bool:
    """Whether names are hidden."""
    return _VARIABLE in os.environ


def of(name: str, kind: str = "case") -> str:
    """The pseudonym of a name, such as "case-3f9a2c1b7d"; the name itself where nobody asked for pseudonyms."""
    return made(name, kind) if is_on() else name


def made(name: str, kind: str = "case") -> str:
    """The pseudonym of a name."""
    return f"{kind}-{hmac.new(_key(), name.encode(errors='surrogateescape'), hashlib.sha256).hexdigest()[:_DIGITS]}"


def know(names: Iterable[Any], kind: str = "case", stands_for: str | None = None) -> None:
    """Hides these names from now on. stands_for: the name whose pseudonym they get, where it is not their own."""
    if not is_on():
        return
    for name in filter(None, map(str, names)):
        pseudonym = made(name if stands_for is None else stands_for, kind)
        if name.isdecimal() and len(name) <= _SHORT:
            _add({before + name: before + pseudonym for before in _WORDS})
        else:
            _add(dict.fromkeys(_written(name), pseudonym))


def know_path(path: Path, root: Path) -> None:
    """Hides what the path of a folder or file adds to that of the data set, part by part; all of it where it lies elsewhere."""
    if not is_on():
        return
    above, path = Path(os.path.abspath(root)), Path(os.path.abspath(path))
    if path == above:
        return
    if above not in path.parents:
        above = Path(path.anchor)
    pseudonym = str(above.joinpath(*map(_part, path.relative_to(above).parts)))
    _add(dict.fromkeys(_written(str(path)), pseudonym))


def know_case(case: Case, root: Path) -> None:
    """Hides the name of a case, its patient, and those of its files that have another name than the case."""
    know([case.id])
    know([case.patient] if case.patient != case.id else [], "patient")
    for path in case.files if is_on() else ():
        if hidden(path.name) == path.name:
            know_path(path, root)


def hidden(text: str) -> str:
    """The text with a pseudonym for every name that is known (NAMES-2)."""
    pieces, done = [], 0
    for match in _STARTS.finditer(text) if _known else ():
        if (at := match.start()) >= done and (name := _name_at(text, at)):
            pieces += [text[done:at], _known[name]]
            done = at + len(name)
    return "".join([*pieces, text[done:]])


def _name_at(text: str, at: int) -> str | None:
    """The longest name that begins here and ends with a word."""
    for length in _lengths:
        if (name := text[at : at + length]) in _known and not text[at + length : at + length + 1].isalnum():
            return name
    return None


def _written(name: str) -> tuple[str, str, str]:
    """The forms of a name: its own; as it stands in messages, quoted or without what is no UTF-8; and that of HTML."""
    return name, repr(name)[1:-1], escape(name)


def _add(pseudonyms: dict[str, str]) -> None:
    for name, pseudonym in pseudonyms.items():
        _known.setdefault(name, pseudonym)
    _lengths[:] = sorted({*_lengths, *map(len, pseudonyms)}, reverse=True)


def _part(name: str) -> str:
    """Of a path: a folder, or a file, whose ending stays."""
    stem = re.sub(r"(\.nii(\.gz)?|\.png)$", "", name, flags=re.IGNORECASE)
    return made(stem, "folder" if stem == name else "file") + name.removeprefix(stem)


@cache
def _key() -> bytes:
    """Of this machine; made once (NAMES-1)."""
    path = cache_directory() / "pseudonyms.key"
    if not path.is_file():
        files.writable_directory(path.parent)
        with files.lock(path, longest_seconds=_LONGEST_SECONDS), files.reported_writes(path.parent):
            if not path.is_file():
                with files.new_file(path) as temporary:
                    temporary.touch(0o600)
                    temporary.write_bytes(secrets.token_bytes(_KEY_BYTES))
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise DataError(
            f"{path}: found {len(key)} bytes; expected a key of {_KEY_BYTES}; delete it to get other pseudonyms"
        )
    return key


class _Filtered:
    """A stream that writes what is hidden in the place of what it is given."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(hidden(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
