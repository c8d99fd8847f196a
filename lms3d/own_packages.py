"""The packages with common names that `lms3d` imports, `data` and `models`: another file of that name may hide them.

`python -m` searches the current folder first. A `data.py` there hides the package `data`, and without this check a command would
end in an ImportError that names neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

NAMES = ("data", "models")


def hidden_by(name: str) -> Path | None:
    """The file or folder that Python imports as `name` instead of lms3d's package; None if nothing hides the package."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module without a spec: a program put it into sys.modules by hand
        return Path(getattr(sys.modules[name], "__file__", None) or name)
    if spec is None:
        return None
    folders = [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
    # Compare folders, not files: an installation without sources has `__init__.pyc`.
    if not folders or folders[0] != Path(__file__).resolve().parent.with_name(name):
        return Path(spec.origin).resolve() if spec.origin else next(iter(folders), Path(name))
    return None


def runs_a_command(argv: Sequence[str], orig_argv: Sequence[str]) -> bool:
    """Whether Python was started to run a module of lms3d. Any other program that imports lms3d may have a `data` of its own.

    argv: `sys.argv`, which is `["-m", *arguments]` while Python looks for the module. orig_argv: `sys.orig_argv`, which ends in the
    module's name and the same arguments.
    """
    if argv[:1] != ["-m"] or len(orig_argv) < len(argv):
        return False
    last = orig_argv[-len(argv)]
    module = last.partition("m")[2] if last.startswith("-") else last  # also `python -mlms3d.train`
    return module.partition(".")[0] == "lms3d"


def require_found() -> None:
    """Ends the process with code 2 and one line on stderr if another file hides one of the packages."""
    for name in NAMES:
        if (path := hidden_by(name)) is not None:
            print(_message(name, path), file=sys.stderr)
            raise SystemExit(2)


def _message(name: str, path: Path) -> str:
    return (
        f"lms3d: error: {path}: found this in the place of lms3d's own package `{name}`; expected no other `{name}` where Python "
        "looks first; run the command from another folder, or rename it"
    )
