"""Files that are whole or absent: written under a temporary name, then renamed. And where lasting caches lie."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lms3d.errors import InputError, StorageError


def cache_directory() -> Path:
    """Where what can be made again is kept between runs: `$LMS3D_CACHE`, else `~/.cache/lms3d`."""
    named = os.environ.get("LMS3D_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "lms3d"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` (same suffix) that takes its place when the block succeeds.

    If the block fails the old file stays and the temporary one is removed. OSError becomes StorageError with the path.
    """
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; the previous version is intact") from error
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path`, atomically."""
    with replacing(path) as partial:
        partial.write_text(text)


def write_json(path: Path, content: Any) -> None:
    """Writes `content` as indented JSON, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def writable_folder(path: Path, option: str) -> Path:
    """Makes the folder if needed and proves that a file can be made in it; else InputError naming the option."""
    probe = path / f".probe.{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}; give a folder that you can write to") from None
    return path
