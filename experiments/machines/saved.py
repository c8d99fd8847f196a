"""Parts of the work as JSON files. No TensorFlow here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lms3d import console
from lms3d.errors import InputError
from lms3d.files import write_json

Part = dict[str, Any]
_SOURCES = ("lms3d/engine/**/*.py", "lms3d/machines/*.*", "models/*.py", "experiments/machines/*.py")


class Saved:
    """Each part is made once; anew with `again`, or when the code or the file of a machine has changed since."""

    def __init__(self, folder: Path, *, again: bool) -> None:
        self.folder, self.again, self.code = folder, again, _digest()

    def get(self, name: str, make: Callable[[], Part]) -> Part:
        """The part of this name. InputError for a file that is no part."""
        path = self.folder / f"{name}.json"
        if path.exists() and not self.again:
            known = _load(path)
            if known["code"] == self.code:
                return dict(known["part"])
        console.say(f"{name} ...")
        part = make()
        write_json(path, {"code": self.code, "part": part})
        return part


def _load(path: Path) -> Part:
    try:
        known: Part = json.loads(path.read_text())
        dict(known["part"])
        str(known["code"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {error!r}; expected a part of this program; delete it and run again") from None
    return known


def _digest() -> str:
    """Of the sources that decide a part."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
