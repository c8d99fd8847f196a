"""One training per run folder: a lock that the kernel drops when the process ends, however it ends.

The lock is a `flock` on `RUN_DIR/.lock`. The text of that file says who holds the lock; releasing the lock removes the file. A run
can be read without it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Self

from lms3d import console
from lms3d.errors import InputError

LOCK = ".lock"
_POLL_SECONDS = 0.1
_ATTEMPTS = 30
_NO_FILE = -1
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
_GONE = frozenset({errno.ESTALE, errno.ENOENT})  # its holder removed it, or a file server was restarted


class RunLock:
    """The lock of the run folder in which this process trains; a context manager that releases it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._file = _NO_FILE

    def take(self, folder: Path, seconds: float = 0.0) -> bool:
        """Takes the lock of this folder and releases any other one; waits for at most `seconds`. False if another process has it.

        If the file system has no locks, a message says so and nothing is locked. InputError if locking fails.
        """
        if folder == self.folder:
            return True
        self.release()
        until = time.monotonic() + seconds
        while (file := _locked(folder / LOCK)) is None:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
        self.folder, self._file = folder, file
        return True

    @property
    def locked(self) -> bool:
        """Whether other processes are kept out."""
        return self._file != _NO_FILE

    def release(self) -> None:
        """Gives the lock back, if this process has it."""
        if self.folder is not None and self.locked:
            with contextlib.suppress(OSError):
                (self.folder / LOCK).unlink()
            os.close(self._file)
        self.folder, self._file = None, _NO_FILE

    @staticmethod
    def holder(folder: Path) -> str:
        """Who holds the lock, for messages."""
        with contextlib.suppress(OSError):
            return (folder / LOCK).read_text(errors="replace").strip() or "another process"
        return "another process"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _locked(path: Path, attempts: int = _ATTEMPTS) -> int | None:
    """The open and locked file; None while another process has it; _NO_FILE if there are no locks. Any other failure is an
    InputError: removing a lock file that may be another process's would let a third one in."""
    try:
        return _flocked(_opened(path))
    except OSError as error:
        why = f"cannot lock it ({error.strerror})"
        if error.errno in _NO_LOCKS:
            console.say(f"{path.parent}: {why}: see to it that nothing else writes there")
            return _NO_FILE
        if error.errno not in _GONE or attempts == 1:
            raise InputError(
                f"{path}: {why}; if nothing else writes there, delete it and try again, or choose another --output"
            ) from None
    time.sleep(_POLL_SECONDS)
    return _locked(path, attempts - 1)


def _opened(path: Path) -> int:
    """The file, made if it is missing. A file of another user can be locked without writing to it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def _flocked(file: int) -> int | None:
    """The open file, locked; None while another process has it. It is closed unless it is returned."""
    with contextlib.ExitStack() as unless_kept:
        unless_kept.callback(os.close, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return None
        if not os.fstat(file).st_nlink:  # its holder has removed the file after it was opened here
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        with contextlib.suppress(OSError):  # a full disk, or a file of another user: the text is for messages only
            os.truncate(file, 0)
            os.write(file, _about_us())
        unless_kept.pop_all()
        return file


def _about_us() -> bytes:
    return f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%F %T')}\n".encode()
