"""Checksums of whole files, each read once: they are remembered until a file's size or time changes. The fingerprint of a data set.

<cache root>/checksums/<digest of the paths>.json      path -> size, modification time in ns, CRC-32
"""

from __future__ import annotations

import errno
import hashlib
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.errors import DataError
from lms3d.data.volumes.case import Case
from lms3d.data.volumes.header import GZIP, NOT_REGULAR, open_bytes

_CHUNK_BYTES = 1 << 22
_SAMPLE_BYTES = 4096
_NOTHING = (errno.ENOENT, errno.ELOOP, NOT_REGULAR)  # a link to nothing, or to itself; a pipe
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


def data_fingerprint(cases: Sequence[Case]) -> str:
    """A digest of the content of a data set, in hexadecimal. It is the same wherever the set lies and however it was copied.

    It covers each file's name, its size and samples of its bytes. The last bytes of a gzip file are the checksum of all voxels, so
    they show every change; an uncompressed file has none, so it is read whole (`Checksums`). A link to nothing, or a pipe, counts
    as such, and is reported when the case is read. DataError for a file that cannot be read now: if it could be tomorrow, the
    digest would differ.
    """
    digest = hashlib.sha256(b"format 1")
    with Checksums(path for case in cases for path in case.files) as checksums:
        for case in sorted(cases, key=lambda case: case.id):
            digest.update(
                repr((case.id, sorted(case.volumes.items()) if case.volumes else None, *case.absent)).encode()
            )
            for path in case.files:
                digest.update(_file_sample(path, checksums))
    return digest.hexdigest()


def _file_sample(path: Path, checksums: Checksums) -> bytes:
    try:
        with open_bytes(path) as stream:
            size = stream.seek(0, 2)
            pieces = [f"{path.name} {size}".encode(errors="surrogateescape")]
            for start in sorted({0, size // 2, max(0, size - _SAMPLE_BYTES)}):
                stream.seek(start)
                pieces.append(stream.read(_SAMPLE_BYTES))
        if not pieces[1].startswith(GZIP):
            pieces.append(str(checksums.of(path)).encode())
    except OSError as error:
        if error.errno not in _NOTHING:
            raise DataError(
                f"{path}: found {error.strerror}; expected a readable file; check its permissions and the disk"
            ) from None
        pieces = [f"{path.name} {error.strerror}".encode(errors="surrogateescape")]
    return b"\0".join(pieces)
