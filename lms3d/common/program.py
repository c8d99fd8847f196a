"""The name of the program, its version, and how a command of it is started."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAME, VERSION = "lms3d", "0.1.0"
_ABSOLUTE = re.compile(r"(^|[=,])([/~][^,]*)")


def started_as(module: str) -> str:
    """What a user types to run the command in a module, in the way that this process was started: "lms3d train",
    "python -m lms3d train" or "python -m lms3d.train"."""
    started, command = Path(sys.argv[0]), module.rpartition(".")[2]
    if started.name == NAME:
        return f"{NAME} {command}"
    return f"python -m {NAME} {command}" if started.parts[-2:] == (NAME, "__main__.py") else f"python -m {module}"


def without_folders(command: Iterable[Any]) -> list[str]:
    """The command with the last part of each absolute path alone, also in NAME=PATH,PATH: the folders of a machine are private."""
    return [_ABSOLUTE.sub(lambda found: found[1] + Path(found[2]).name, str(word)) for word in command]


def version() -> str:
    """What --version prints."""
    return f"{NAME} {VERSION}"
