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

from lms3d.common.disk import sweep, sync, sync_folder, token, try_to_write
from lms3d.errors import InputError, StorageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`, with its suffix. The file there replaces `path` when the block succeeds.

    If the block fails, the old file stays and the temporary one is removed. An OSError becomes a StorageError with the path.
    A power cut leaves the old file or the new one; after the return, the new one. For the content is synced before the name.
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
        with contextlib.suppress(OSError):  # must not hide the error that ended the block; the next process sweeps
            partial.unlink(missing_ok=True)


def remove_partials(folder: Path) -> None:
    """Removes all temporary files in a folder, whichever machine left them. No other process may be writing there."""
    for partial in folder.glob(".*.partial*"):
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def link_or_copy(path: Path, other: Path) -> None:
    """Gives the file at `path` a second name, `other`. Each may later be replaced without the other.

    Both keep the time at which the content was written: that time decides which run is the latest.
    """
    with replacing(other) as partial:
        try:
            os.link(path, partial)
        except OSError:  # not every file system has links
            shutil.copyfile(path, partial)
            written = path.stat().st_mtime_ns
            with contextlib.suppress(OSError):  # nor can times be set on every one
                os.utime(partial, ns=(written, written))


def make_folder(path: Path) -> bool:
    """Makes the folder and missing parents, so that they outlast a power cut.

    Returns whether this call made it. That is true for exactly one of several processes, on any file system.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = True
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        is_new = False
    for folder in missing:
        sync_folder(folder.parent)
    return is_new


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def require_checksums(archive: Path) -> None:
    """Raises ValueError, BadZipFile or OSError if a zip archive is damaged.

    Call it before a library reads only parts of members, as h5py does in a .keras file: zipfile compares a member's checksum only
    after the last byte was read.
    """
    with zipfile.ZipFile(archive) as opened:
        if (damaged := opened.testzip()) is not None:
            raise ValueError(f"the checksum of {damaged} in it is wrong")


def write_text(path: Path, text: str) -> None:
    """Writes a text for people, atomically. Bytes of a file name that are no UTF-8 are written as backslash escapes."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, content: Any) -> None:
    """Writes `content` as indented JSON, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def writable_folder(path: Path, option: str) -> Path:
    """The folder, made if need be, after a test that a file can be made in it. InputError, which names the option, if not."""
    try:
        make_folder(path)
        try_to_write(path)
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}; give a folder that you can write to") from None
    return path
