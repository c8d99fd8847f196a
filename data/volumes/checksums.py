"""Checksums of whole files, each read once: they are remembered until a file's size or time changes.

<cache root>/checksums/<digest of the paths>.json      path -> size, modification time in ns, CRC-32
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.errors import DataError

_CHUNK_BYTES = 1 << 22
_SETTLED_NS = 2 * 10**9  # a younger file may change again without another time


class Checksums:
    """The CRC-32 of some files. Use it in a `with` block, at whose end new ones are stored."""

    def __init__(self, paths: Iterable[Path]) -> None:
        names = "\0".join(sorted(str(path.absolute()) for path in paths))
        digest = hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:16]
        self._path = cache_directory() / "checksums" / f"{digest}.json"
        self._known: dict[str, list[int]] = {}
        self._changed = False

    def __enter__(self) -> Checksums:
        with suppress(DataError):  # none is stored yet, or the file is damaged
            stored = files.read_json(self._path, advice="delete it")
            if isinstance(stored, dict) and all(_is_entry(entry) for entry in stored.values()):
                self._known = stored
        return self

    def __exit__(self, *_: object) -> None:
        if self._changed:
            with suppress(DataError, OSError):  # without a cache folder every file is read again
                files.writable_directory(self._path.parent)
                files.write_json(self._path, self._known)

    def of(self, path: Path) -> int:
        """The CRC-32 of all bytes of a file. OSError if it cannot be read."""
        name = str(path.absolute()).encode(errors="backslashreplace").decode()
        about = path.stat()
        now = [about.st_size, about.st_mtime_ns]
        if (known := self._known.get(name)) is not None and known[:2] == now:
            return known[2]
        checksum = _crc32(path)
        if time.time_ns() - about.st_mtime_ns > _SETTLED_NS:
            self._known[name], self._changed = [*now, checksum], True
        return checksum


def _is_entry(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 3 and all(type(number) is int for number in entry)


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
