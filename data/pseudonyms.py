"""Pseudonyms for the names of cases, patients and images, so that people can paste and publish output (`--anonymous`).

`start` puts a filter before stdout and stderr, through which progress, messages, tracebacks and warnings pass. Tables and figures
call `of`. Readers of data register names as soon as they find them (`know`, `know_path`, `know_case`), before an error can name
them.

NAMES-1  A pseudonym is a keyed digest. It is the same in every command on this machine, and nobody without the key can guess names.
         The key lies in the cache folder, with mode 0600. With the key and the data one can list names (`data.prepare
         --pseudonyms`).
NAMES-2  A name is replaced if it is a whole word. Below a data set's folder each part of a path is replaced.
NAMES-3  Files that programs read again (split.json, predictions.json, predictions.csv, predictions, caches) keep names.
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

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.errors import DataError

if TYPE_CHECKING:
    from lms3d.data.brats.case import Case

_VARIABLE = "LMS3D_ANONYMOUS"  # so that processes that this one starts hide names, too
_KEY_BYTES, _DIGITS = 32, 10
_LONGEST_SECONDS = 60.0  # in which another process must have made the key
_SHORT = 4  # a number with at most so many digits may be any figure, and is replaced only after one of _WORDS
_WORDS = ("case ", "image ", "patient ", "cases ", "found ", "'", '"', "/", "such as ", ", ")
_STARTS = re.compile(r"(?<![^\W_])|(?=[\W_])")

_known: dict[str, str] = {}
_lengths: list[int] = []


def start(anonymous: bool = True) -> None:
    """Hides names from now on in this process and its children. anonymous: if False, only if a parent process does
    so."""
    if not (anonymous or os.environ.get(_VARIABLE)):
        return
    _key()  # reports now if something is wrong with the key
    os.environ[_VARIABLE] = "1"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # native code writes past the filter
    for name in ("stdout", "stderr"):
        if not isinstance(getattr(sys, name), _Filtered):
            setattr(sys, name, _Filtered(getattr(sys, name)))


def forget() -> None:
    """Forgets all names and the key. For tests."""
    _known.clear()
    _lengths.clear()
    _key.cache_clear()


def is_on() -> bool:
    """Whether names are hidden."""
    return _VARIABLE in os.environ


def of(name: str, kind: str = "case") -> str:
    """The pseudonym of a name, such as "case-3f9a2c1b7d", if names are hidden; otherwise the name."""
    return pseudonym(name, kind) if is_on() else name


def pseudonym(name: str, kind: str = "case") -> str:
    """The pseudonym of a name."""
    return f"{kind}-{hmac.new(_key(), name.encode(errors='surrogateescape'), hashlib.sha256).hexdigest()[:_DIGITS]}"


def know(names: Iterable[Any], kind: str = "case", stands_for: str | None = None) -> None:
    """Hides these names from now on. stands_for: the name whose pseudonym they get, if not their own."""
    if not is_on():
        return
    for name in filter(None, map(str, names)):
        substitute = pseudonym(name if stands_for is None else stands_for, kind)
        if name.isdecimal() and len(name) <= _SHORT:
            _add({before + name: before + substitute for before in _WORDS})
        else:
            _add(dict.fromkeys(_written(name), substitute))


def know_path(path: Path, root: Path) -> None:
    """Hides the parts of a path below the data set's folder, one by one; all parts if it lies elsewhere."""
    if not is_on():
        return
    above, path = Path(os.path.abspath(root)), Path(os.path.abspath(path))
    if path == above:
        return
    if above not in path.parents:
        above = Path(path.anchor)
    substitute = str(above.joinpath(*map(_part, path.relative_to(above).parts)))
    _add(dict.fromkeys(_written(str(path)), substitute))


def know_case(case: Case, root: Path) -> None:
    """Hides the name of a case, its patient, and the names of its files that differ from the case's."""
    know([case.id])
    know([case.patient] if case.patient != case.id else [], "patient")
    for path in case.files if is_on() else ():
        if hidden(path.name) == path.name:
            know_path(path, root)


def hidden(text: str) -> str:
    """The text with a pseudonym for every known name (NAMES-2)."""
    pieces, done = [], 0
    for match in _STARTS.finditer(text) if _known else ():
        if (at := match.start()) >= done and (name := _name_at(text, at)):
            pieces += [text[done:at], _known[name]]
            done = at + len(name)
    return "".join([*pieces, text[done:]])


def _name_at(text: str, at: int) -> str | None:
    """The longest known name that begins at this place and ends at the end of a word; None if there is none."""
    for length in _lengths:
        if (name := text[at : at + length]) in _known and not text[at + length : at + length + 1].isalnum():
            return name
    return None


def _written(name: str) -> tuple[str, str, str]:
    """The forms in which a name may be written: as it is, as Python's `repr` quotes it in messages, and escaped in HTML."""
    return name, repr(name)[1:-1], escape(name)


def _add(pseudonyms: dict[str, str]) -> None:
    for name, pseudonym in pseudonyms.items():
        _known.setdefault(name, pseudonym)
    _lengths[:] = sorted({*_lengths, *map(len, pseudonyms)}, reverse=True)


def _part(name: str) -> str:
    """The pseudonym of a part of a path: of a folder, or of a file, whose ending stays."""
    stem = re.sub(r"(\.nii(\.gz)?|\.png)$", "", name, flags=re.IGNORECASE)
    return pseudonym(stem, "folder" if stem == name else "file") + name.removeprefix(stem)


@cache
def _key() -> bytes:
    """The key of this machine, which is made once (NAMES-1)."""
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
    """A stream that replaces known names in the text that is written to it."""

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
