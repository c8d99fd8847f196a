"""The packages beside `lms3d` that it imports by common names: a file of the same name elsewhere may be found in their place.

`python -m` searches the current folder first: a `data.py` there hides `data`, and the commands would end in an ImportError that
names neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

NAMES = ("data", "models")


def hidden_by(name: str) -> Path | None:
    """The file or folder that is imported as `name` in the place of the package of lms3d; None where nothing hides it."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module without a spec: a program has put it into sys.modules by hand
        return Path(getattr(sys.modules[name], "__file__", None) or name)
    if spec is None:
        return None
    folders = [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
    # Folders are compared: the file in them is `__init__.pyc` in an installation without sources.
    if not folders or folders[0] != Path(__file__).resolve().parent.with_name(name):
        return Path(spec.origin).resolve() if spec.origin else next(iter(folders), Path(name))
    return None


def runs_a_command(argv: Sequence[str], orig_argv: Sequence[str]) -> bool:
    """Whether Python is looking for a module of lms3d to run it. Another's module that imports lms3d may have a `data` of its own.

    argv: `sys.argv`, which is `["-m", *arguments]` while Python looks. orig_argv: `sys.orig_argv`, which ends in the module's name
    and the same arguments.
    """
    if argv[:1] != ["-m"] or len(orig_argv) < len(argv):
        return False
    word = orig_argv[-len(argv)]
    module = word.partition("m")[2] if word.startswith("-") else word  # also `python -mlms3d.train`
    return module.partition(".")[0] == "lms3d"


def require_found() -> None:
    """SystemExit(2) after one line on stderr where a file hides one of the packages."""
    for name in NAMES:
        if (found := hidden_by(name)) is not None:
            print(_told(name, found), file=sys.stderr)
            raise SystemExit(2)


def _told(name: str, found: Path) -> str:
    return (
        f"lms3d: error: {found}: found this in the place of lms3d's own package `{name}`; expected no other `{name}` where Python "
        "looks first; run the command from another folder, or rename it"
    )
