"""The packages beside `lms3d` that it imports by common names: a file of the same name elsewhere may be found in their place.

`python -m` searches the current folder first: a `data.py` there hides `data`, and the commands would end in an ImportError that
names neither.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

NAMES = ("data", "models")


def hidden_by(name: str) -> Path | None:
    """The file or folder that is imported as `name` in the place of the package of lms3d; None where nothing hides it."""
    spec = find_spec(name)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    found = next((Path(place).resolve() for place in places if place), None)
    own = Path(__file__).resolve().parent.with_name(name)
    return None if found is None or found in (own, own / "__init__.py") else found


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
