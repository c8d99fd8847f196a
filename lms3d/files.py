"""Files that are whole or absent, even after a power cut: written under a temporary name, synced, renamed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lms3d.common.disk import sweep, sync, sync_folder, token
from lms3d.errors import InputError, StorageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` (same suffix) that takes its place when the block succeeds.

    If the block fails the old file stays and the temporary one is removed. OSError becomes StorageError with the path.
    A power cut leaves the old file or the new one, and the new one once this has returned: content is synced before names.
    """
    partial = path.with_name(f".{path.stem}.{token()}.partial{path.suffix}")
    outcome = "the previous version is intact"
    try:
        make_folder(path.parent)
        sweep(path.parent)
        yield partial
        sync(partial)
        os.replace(partial, path)
        outcome = "a power cut may undo it"
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; {outcome}") from error
    finally:
        with contextlib.suppress(OSError):  # the error that counts is on its way; the next process sweeps
            partial.unlink(missing_ok=True)


def remove_partials(folder: Path) -> None:
    """Removes what killed processes left in a folder under temporary names. No other process may be writing there."""
    for partial in folder.glob(".*.partial*"):
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def link_or_copy(path: Path, other: Path) -> None:
    """Gives the file at `path` a second name, replacing what had it; each may then be replaced without the other.

    Both keep the time at which the content was written, by which the latest run is found.
    """
    with replacing(other) as partial:
        try:
            os.link(path, partial)
        except OSError:  # not every file system has links
            shutil.copyfile(path, partial)
            written = path.stat().st_mtime_ns
            with contextlib.suppress(OSError):  # nor lets every one of them set times
                os.utime(partial, ns=(written, written))


def make_folder(path: Path) -> bool:
    """Makes the folder and missing parents, so that they outlast a power cut.

    Returns whether this call made it: of several processes, on any file system, that is one.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    made = True
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        made = False
    for folder in missing:
        sync_folder(folder.parent)
    return made


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def require_checksums(archive: Path) -> None:
    """ValueError, BadZipFile or OSError where a zip archive is not as it was written.

    For who reads parts of members, as h5py does in a .keras file: zipfile compares a checksum only where it has read all.
    """
    with zipfile.ZipFile(archive) as opened:
        if (damaged := opened.testzip()) is not None:
            raise ValueError(f"the checksum of {damaged} in it is wrong")


def write_text(path: Path, text: str) -> None:
    """Writes `text` for people to `path`, atomically. Bytes of a name that are no UTF-8 stand there with backslashes."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, content: Any) -> None:
    """Writes `content` as indented JSON, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def writable_folder(path: Path, option: str) -> Path:
    """Makes the folder if needed and proves that a file can be made in it; else InputError naming the option."""
    probe = path / f".probe.{token()}"
    try:
        make_folder(path)
        sweep(path)
        try:
            probe.touch()
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}; give a folder that you can write to") from None
    return path
