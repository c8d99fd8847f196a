"""Folders and files: where caches live, atomic writes, and a lock between processes.

A file or folder is written under a temporary name, synced and renamed: neither a reader nor a power cut finds half of it.

Rules of what is made once:
CACHE-1 The name of a folder tells everything that its content depends on, so nothing in it can be stale.
CACHE-2 One process builds, others wait for its lock; entries appear whole; a killed build is continued where it stopped.
CACHE-3 An entry of the wrong size is made again; a wrong checksum is found when the entry is first read.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from data.errors import DataError

Progress = Callable[[int, int, str], None]
"""progress(done, total, what): called by long work; entry points draw a bar with it."""


def cache_root() -> Path:
    """Where caches are kept: `$LMS3D_CACHE`, else `~/.cache/lms3d`."""
    named = os.environ.get("LMS3D_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "lms3d"


def readable_directory(path: str | Path) -> Path:
    """`path` as a directory that can be listed; DataError otherwise."""
    path = Path(path).expanduser()
    try:
        os.scandir(path).close()
    except FileNotFoundError:
        raise DataError(f"{path}: found nothing; expected a folder; check the path") from None
    except NotADirectoryError:
        raise DataError(f"{path}: found a file; expected a folder; name the folder that holds it") from None
    except OSError as error:
        raise DataError(f"{path}: found {error.strerror}; expected a readable folder; check its permissions") from None
    return path


def writable_directory(path: str | Path) -> Path:
    """`path` as a directory that exists and can be written to; DataError otherwise."""
    path = Path(path).expanduser()
    probe = path / f".write-test-{_unique()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise DataError(
            f"{path}: found {error.strerror}; expected a folder that can be written to; choose another folder, or "
            "set LMS3D_CACHE to one"
        ) from None
    return path


def require_space(directory: Path, needed_bytes: int) -> None:
    """DataError when the disk of `directory` has less than `needed_bytes` free."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise DataError(
            f"{directory}: found {free_bytes / 2**30:.2f} GiB free; expected at least {needed_bytes / 2**30:.2f} "
            "GiB; free some space, or set LMS3D_CACHE to a folder on another disk"
        )


@contextmanager
def reported_writes(directory: Path) -> Iterator[None]:
    """Turn a failed write below `directory` (full disk, I/O error, permissions) into a DataError."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"{error.filename or directory}: found {error.strerror or error} while writing; expected room and "
            "permission to write; free some space, or set LMS3D_CACHE to a folder on another disk"
        ) from None


@contextmanager
def new_file(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` with the same ending; it becomes `path` when the block ends well.

    lasting: also sync its folder, so that a power cut right afterwards does not take it away. Of thousands of files that
    can be made again, some may be missing.
    """
    temporary = _beside(path)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        if lasting:
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """An empty temporary directory beside `path`; it takes the place of `path` when the block ends well.

    A power cut right afterwards may take it away, but leaves no part of it.
    """
    temporary = _beside(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path_within in temporary.rglob("*"):
            _sync_folder(path_within) if path_within.is_dir() else _sync(path_within)
        _sync_folder(temporary)
        if path.exists():  # a directory cannot be replaced in one call; an old one here is a damaged one
            shutil.rmtree(path)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".part-{_unique()}-{path.name}")


def _unique() -> str:
    """For temporary names. Processes on several machines, or in several containers, may have equal numbers."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"


def _sync(path: Path) -> None:
    """Returns when the content of a file, or the names in a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# Not every file system can sync a folder, nor may every user read a folder that he can write to.
_NO_FOLDER_SYNC = frozenset({errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})


def _sync_folder(folder: Path) -> None:
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def build_once(
    root: Path, is_complete: Callable[[], bool], fill: Callable[[], None], progress: Progress | None, total: int = 0
) -> None:
    """Fills the folder unless it is complete (CACHE-2); clears what a killed process left."""
    if is_complete():
        return
    writable_directory(root)
    with lock(root, progress, total):
        if not is_complete():  # else another process finished it while this one waited
            remove_leftovers(root)
            fill()


def remove_leftovers(directory: Path) -> None:
    """Remove what a killed process left under temporary names. Call it with the lock held."""
    for leftover in directory.glob(".part-*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)


@contextmanager
def lock(directory: Path, progress: Progress | None = None, total: int = 0) -> Iterator[None]:
    """One process at a time works in `directory`; the others wait here and say so through `progress`.

    The kernel drops the lock of a process that dies.
    """
    guard = FileLock(str(directory.with_name(directory.name + ".lock")))
    with reported_writes(directory.parent):
        try:
            guard.acquire(timeout=0)
        except Timeout:
            if progress:
                progress(0, total, f"waiting for another process that works in {directory}")
            guard.acquire()
    try:
        yield
    finally:
        guard.release()


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, atomically."""
    with new_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path, *, advice: str) -> Any:
    """The JSON value in `path`; DataError with `advice` when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: found {error.strerror}; expected a readable file; {advice}") from None
    except ValueError:
        raise DataError(f"{path}: found damaged JSON; expected a JSON document; {advice}") from None
