"""Folders and files: checks, atomic writes, and a lock between processes.

A file or folder is written under a temporary name, synced and renamed, so that neither a reader nor a power cut finds half of it.

The rules for caches:
CACHE-1 The name of a folder holds everything that its content depends on, so that nothing in it can be stale.
CACHE-2 One process builds, and others wait for its lock. Entries appear whole. A killed build is continued where it stopped.
CACHE-3 An entry of the wrong size is made again. A wrong checksum is found when the entry is first read.
"""

from __future__ import annotations

import csv
import errno
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lms3d.common.disk import remove, sweep, sync, sync_folder, token, try_to_write
from lms3d.common.json_values import RepeatedKeyError, parse
from lms3d.common.system_errors import DISK_ADVICE, PATH_ADVICE
from lms3d.data.errors import DataError

_PATIENCE_SECONDS = 3.0

Progress = Callable[[int, int, str], None]
"""progress(done, total, what): long work calls it, and entry points draw a bar with it."""


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
        advice = PATH_ADVICE.get(error.errno or 0, "check its permissions")
        raise DataError(f"{path}: found {error.strerror}; expected a readable folder; {advice}") from None
    return path


def writable_directory(path: str | Path) -> Path:
    """`path` as a directory that exists and can be written to; DataError otherwise."""
    path = Path(path).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        try_to_write(path)
    except OSError as error:
        raise DataError(
            f"{path}: found {error.strerror}; expected a folder that can be written to; choose another folder, or "
            "set LMS3D_CACHE to one"
        ) from None
    return path


def require_space(directory: Path, needed_bytes: int) -> None:
    """DataError if the disk of `directory` has less than `needed_bytes` free."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise DataError(
            f"{directory}: found {_size(free_bytes)} free; expected at least {_size(needed_bytes)}; free some space, or "
            "set LMS3D_CACHE to a folder on another disk"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"


@contextmanager
def reported_writes(directory: Path) -> Iterator[None]:
    """A block in which a failed write below `directory` (full disk, I/O error, permissions) becomes a DataError."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        # numpy raises an error without a number if the disk took fewer bytes than it was given.
        advice = DISK_ADVICE.get(error.errno or errno.ENOSPC, "check its permissions")
        raise DataError(
            f"{error.filename or directory}: found {error.strerror or error} while writing; expected room and "
            f"permission to write; {advice}, or set LMS3D_CACHE to a folder on another disk"
        ) from None


@contextmanager
def new_file(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """Yields a temporary path beside `path`, with the same ending. The file there becomes `path` when the block ends well.

    lasting: whether to sync the folder as well, so that the file outlasts a power cut right afterwards. Leave that out for
    thousands of files that can be made again.
    """
    temporary = _beside(path)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        if lasting:
            sync_folder(path.parent)
    finally:
        with suppress(OSError):  # must not hide the error that ended the block; the next process sweeps
            temporary.unlink(missing_ok=True)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields an empty temporary directory beside `path`. It becomes `path` when the block ends well.

    After a power cut right afterwards it is whole or absent.
    """
    temporary = _beside(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path_within in temporary.rglob("*"):
            sync_folder(path_within) if path_within.is_dir() else sync(path_within)
        sync_folder(temporary)
        if path.exists():  # a directory cannot be replaced in one call; one that is here is damaged
            shutil.rmtree(path)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(path: Path) -> Path:
    sweep(path.parent)
    return path.with_name(f".part-{token()}-{path.name}")


_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK})


def build_once(
    root: Path, is_complete: Callable[[], bool], fill: Callable[[], None], progress: Progress | None, total: int = 0
) -> None:
    """Fills the folder, unless it is complete (CACHE-2), and first removes what a killed process left."""
    if is_complete():
        return
    writable_directory(root)
    with lock(root, progress, total):
        if not is_complete():  # another process may have finished it while this one waited
            remove_leftovers(root)
            fill()


def remove_leftovers(directory: Path) -> None:
    """Removes what a killed process left under temporary names. Call it with the lock held."""
    for leftover in directory.glob(".part-*"):
        remove(leftover)


@contextmanager
def lock(
    directory: Path, progress: Progress | None = None, total: int = 0, *, longest_seconds: float | None = None
) -> Iterator[None]:
    """A block in which one process at a time works in `directory`. The others wait, and say so through `progress`, or without it on
    stderr after some seconds. longest_seconds: a limit for short work; a process that has waited for so long gets a DataError.

    The kernel drops the lock of a process that dies. DataError if the file system has no such locks: a plain file in place of a
    lock would outlive a killed process, and everybody would wait for it.
    """
    guard = FileLock(str(directory.with_name(directory.name + ".lock")), fallback_to_soft=False)
    with reported_writes(directory.parent):
        try:
            guard.acquire(timeout=0)
        except Timeout:
            _require_started(directory)
            _say_when_late(guard, directory, progress, total)
            _wait_for(guard, longest_seconds)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise DataError(
                f"{directory.parent}: found a file system without locks ({error.strerror}); expected one where flock works; "
                "set LMS3D_CACHE to a folder on another disk"
            ) from None
    try:
        yield
    finally:
        guard.release()


def _require_started(directory: Path) -> None:
    """DataError in a worker process that is still importing the script which started it: that waits for the worker."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise DataError(
            f"{directory}: found the calling script run again by a worker process; expected its work below "
            "`if __name__ == '__main__':`; put it there, or ask for one worker"
        )


def _say_when_late(guard: FileLock, directory: Path, progress: Progress | None, total: int) -> None:
    """Says what this process waits for. Without `progress` it waits some seconds first, and returns silently if it gets the
    lock."""
    waiting = f"waiting for another process that works in {directory}"
    if progress:
        progress(0, total, waiting)
        return
    try:
        guard.acquire(timeout=_PATIENCE_SECONDS)
    except Timeout:
        print(waiting, file=sys.stderr, flush=True)


def _wait_for(guard: FileLock, longest_seconds: float | None) -> None:
    if guard.is_locked:
        return
    try:
        guard.acquire(timeout=-1 if longest_seconds is None else longest_seconds)
    except Timeout:
        raise DataError(
            f"{guard.lock_file}: found it locked by another process for {longest_seconds:.0f} s; expected that for a moment only; "
            f"end that process (`fuser {guard.lock_file}` names it) and try again"
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, atomically."""
    with new_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Writes rows as CSV for people, atomically. Bytes of a file name that are no UTF-8 are written as backslash escapes."""
    with (
        new_file(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream,
    ):
        csv.writer(stream).writerows(rows)


def read_json(path: Path, *, advice: str, keys: Iterable[str] = ()) -> Any:
    """The JSON value in a file. DataError with `advice` if it is missing or damaged, or if it is no object with these keys."""
    try:
        value = parse(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: found {error.strerror}; expected a readable file; {advice}") from None
    except RepeatedKeyError as error:
        raise DataError(f"{path}: found {error}; expected every key once; correct this file") from None
    except ValueError:
        raise DataError(f"{path}: found damaged JSON; expected a JSON document; {advice}") from None
    if keys and not (isinstance(value, dict) and set(keys) <= value.keys()):
        raise DataError(f"{path}: found JSON of another kind; expected an object with {', '.join(keys)}; {advice}")
    return value


def delimiter(text: str) -> str:
    """The delimiter of a table's columns. In some countries spreadsheets write semicolons or tabs."""
    head = text.partition("\n")[0]
    return max(",;\t", key=head.count)
