"""Private swap folders that never outlive their owner, however it ends.

A tiny shell process holds the reading end of a pipe whose writing end this process alone has. The kernel closes that end when the
process ends, and the shell removes the folder. Launchers end a job by signals to the children of a process and then to the process
itself: the shell is an orphan from the start, and ignores every signal that can be ignored. If all processes of a job are killed at
once (a batch system's group, a machine that fails), the next run finds the folder: a lock in it dies with its owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path

_PREFIX = "lms3d-swap-"
_YOUNG_SECONDS = 5  # the owner of a younger folder may not hold the lock yet
_SCRIPT = 'exec 3<&0; (trap "" HUP INT TERM; read -r _ <&3; rm -f -- "$1"/[0-9]*; rm -rf -- "$1") </dev/null >/dev/null 2>&1 &'


def swap_parent(directory: str | Path | None) -> Path:
    """The folder that swap folders are made in: `directory`, or else the system's temporary folder.

    The path is absolute: the shell that removes a folder works in another one, and a program may change its working directory.
    """
    return Path(directory or tempfile.gettempdir()).expanduser().absolute()


def new_folder(parent: Path) -> tuple[Path, tuple[int, int]]:
    """A new folder below `parent`, for this user alone, and the open files that keep it. OSError if it cannot be made."""
    parent.mkdir(parents=True, exist_ok=True)
    folder, held = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)), list[int]()  # mode 0700
    try:
        held.append(os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600))
        fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(_remove_after(folder))
    except OSError:
        for file in held:
            os.close(file)
        with contextlib.suppress(OSError):  # by their names: a process that can open no more files cannot list a folder
            (folder / "lock").unlink(missing_ok=True)
            folder.rmdir()
        raise
    return folder, (held[0], held[1])


def _remove_after(folder: Path) -> int:
    """A file whose closing removes `folder`, by `os.close` or by the end of the process.

    If no process can be started, the folder stays until `remove_orphans` finds it.
    """
    reader, writer = os.pipe()  # not inherited by programs that this process starts
    try:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["/bin/sh", "-c", _SCRIPT, "lms3d-lifeline", str(folder)]
            subprocess.run(command, stdin=reader, start_new_session=True, cwd="/", check=False, timeout=10)
    finally:
        os.close(reader)
    return writer


def remove_orphans(parent: Path) -> list[Path]:
    """Removes this user's swap folders whose owner is gone; returns them."""
    removed = []
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            ours = (
                stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
            )  # no link, which anybody may plant in /tmp
            if not ours or time.time() - about.st_mtime < _YOUNG_SECONDS:
                continue
            # Without a lock it has nothing in it, unless a cleaner of old files has taken the lock of a run of many days.
            if not (folder / "lock").exists():
                folder.rmdir()
                removed.append(folder)
                continue
            file = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for path in folder.iterdir():
                    if path.name != "lock":  # which goes last
                        path.unlink()
                shutil.rmtree(folder)
                removed.append(folder)
            finally:
                os.close(file)
    return removed
