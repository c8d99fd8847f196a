"""Cache folders of tests. They share the compiled swap engine, which takes half a minute of a core to make, and the speeds of this
machine, which take two seconds. Plans, cubes and seconds of ops and steps are each folder's own."""

from __future__ import annotations

import json
from pathlib import Path

from lms3d.common import json_values
from lms3d.common.disk import cache_directory

_made: set[Path] = set()


def private_cache(folder: Path, *, measured: bool = True) -> Path:
    """The folder, for LMS3D_CACHE. The native library in it is the user's own: its name tells its sources. measured: the
    machine's speeds are known in it, if they were measured in another of these folders."""
    native = cache_directory() / "native"
    native.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "native"
    if not link.exists():
        link.symlink_to(native.resolve())
        if measured:
            _tell_speeds(folder)
    return folder


def _tell_speeds(folder: Path) -> None:
    """Writes this machine's known speeds into a new cache folder."""
    known = {}
    for file in [other / "machine.json" for other in _made]:
        if file.exists():
            known |= json_values.parse(file.read_text())
    if known:
        (folder / "machine.json").write_text(json.dumps(known))
    _made.add(folder)
