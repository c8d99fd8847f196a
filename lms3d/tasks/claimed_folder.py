"""The folder that a command writes its results to: one process at a time, or there would be a mixture under one name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lms3d import files
from lms3d.errors import InputError
from lms3d.training.run_lock import RunLock


@contextmanager
def claimed(folder: Path, option: str) -> Iterator[Path]:
    """Makes the folder if need be, and keeps others out of it until the block ends. InputError, which names `option`, where
    nothing can be written to it or another process has it."""
    files.writable_folder(folder, option)
    with RunLock() as lock:
        if not lock.take(folder):
            raise InputError(
                f"{option} {folder} is in use by {lock.holder(folder)}; wait until that has ended, or choose another"
            )
        yield folder
