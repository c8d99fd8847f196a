"""Files and folders under temporary names: how they are named, synced, and removed when the process that made them was killed.

A temporary name is hidden, and holds a token of the machine and the process. By the token the next process tells the leftovers of a
killed process from the files of a living one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

# Not every file system can sync a folder, nor may every user read a folder that he can write to.
_NO_FOLDER_SYNC = frozenset({errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})


def cache_directory() -> Path:
    """The folder of the caches that outlast a run: `$LMS3D_CACHE`, else `~/.cache/lms3d`."""
    chosen = os.environ.get("LMS3D_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "lms3d"


def sync(path: Path) -> None:
    """Returns when the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """`sync` of a folder, if its file system and its permissions allow that."""
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def token() -> str:
    """A new token for a temporary name. It holds the machine, since processes on two machines may have equal numbers."""
    return f"{_MACHINE}-{os.getpid()}-{secrets.token_hex(4)}"


@cache  # once per folder
def sweep(folder: Path) -> None:
    """Removes what killed processes of this machine left in a folder under temporary names. Others may be writing there."""
    for path in folder.glob(".*"):
        if (owner := _TEMPORARY.search(path.name)) and not psutil.pid_exists(int(owner[1])):
            remove(path)


def try_to_write(folder: Path) -> None:
    """Makes and removes a file in a folder. OSError if it is not writable."""
    probe = folder / f".probe.{token()}"
    sweep(folder)
    try:
        probe.touch()
    finally:
        probe.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Removes a temporary file or folder; one that cannot be removed stays."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _machine() -> str:
    """Machine, boot and container: only within them does a process's number say whether it lives."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        kernel = secrets.token_hex()
    return f"{socket.gethostname()[:40]}-{hashlib.sha256(kernel.encode()).hexdigest()[:8]}"


_MACHINE = _machine()
_TEMPORARY = re.compile(rf"[.-]{re.escape(_MACHINE)}-(\d+)-[0-9a-f]{{8}}(?:[.-]|$)")
