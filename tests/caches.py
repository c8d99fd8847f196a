"""Cache folders of tests. They share nothing but the compiled swap engine, which takes half a minute of a core to make."""

from __future__ import annotations

from pathlib import Path

from lms3d.common.disk import cache_directory


def private_cache(folder: Path) -> Path:
    """The folder, for LMS3D_CACHE. The native library in it is the user's own: its name tells what it was made of."""
    native = cache_directory() / "native"
    native.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "native"
    if not link.exists():
        link.symlink_to(native.resolve())
    return folder
