"""The folder into which a command writes its results. One process at a time has it: two would leave a mixture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lms3d import atomic_files
from lms3d.errors import InputError
from lms3d.training.run_lock import RunLock


@contextmanager
def claimed(folder: Path, option: str) -> Iterator[Path]:
    """Makes the folder if it is missing, and keeps other processes out until the block ends. InputError, which names `option`, if
    nothing can be written there or another process has it."""
    atomic_files.writable_folder(folder, option)
    with RunLock() as lock:
        if not lock.take(folder):
            raise InputError(
                f"{option} {folder} is in use by {lock.holder(folder)}; wait until that has ended, or choose another"
            )
        yield folder
