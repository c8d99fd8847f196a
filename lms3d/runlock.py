"""One training per run folder: who trains there holds a lock on it, which the kernel drops with the process, however that ends.

It is a `flock` on `RUN_DIR/.lock`, whose text says who holds it; who releases it removes the file. Reading a run needs no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Self

from lms3d import console

LOCK = ".lock"
_POLL_SECONDS = 0.1
_NO_FILE = -1


class RunLock:
    """The lock of the one run folder that this process trains in; context manager, which releases it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._file = _NO_FILE

    def take(self, folder: Path, seconds: float = 0.0) -> bool:
        """Whether this process has the lock of this folder, in place of any other; waits at most so long for it.

        Where the file system has no locks it is said so, and nobody is kept out.
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
        """Whether nobody else can have the folder."""
        return self._file != _NO_FILE

    def release(self) -> None:
        """Gives the lock back, if there is one."""
        if self.folder is not None and self.locked:
            with contextlib.suppress(OSError):
                (self.folder / LOCK).unlink()
            os.close(self._file)
        self.folder, self._file = None, _NO_FILE

    @staticmethod
    def holder(folder: Path) -> str:
        """Who holds the lock, for a message."""
        with contextlib.suppress(OSError):
            return (folder / LOCK).read_text(errors="replace").strip() or "another process"
        return "another process"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _locked(path: Path) -> int | None:
    """The open and locked file; None while another process has it; _NO_FILE where there are no locks."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(file)
            return None
        except OSError as error:
            os.close(file)
            path.unlink(missing_ok=True)
            console.say(
                f"{path.parent}: cannot lock it ({error.strerror}): see to it that no other training writes there"
            )
            return _NO_FILE
        if os.fstat(file).st_nlink:
            os.truncate(file, 0)
            os.write(
                file, f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%F %T')}\n".encode()
            )
            return file
        os.close(file)  # its holder has removed it since it was opened
