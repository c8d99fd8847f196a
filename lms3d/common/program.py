"""The name of the program, its version, and how a command of it is started."""

from __future__ import annotations

import sys
from pathlib import Path

NAME, VERSION = "lms3d", "0.1.0"


def started_as(module: str) -> str:
    """What a user types to run the command in a module, in the way that this process was started: "lms3d train",
    "python -m lms3d train" or "python -m lms3d.train"."""
    started, command = Path(sys.argv[0]), module.rpartition(".")[2]
    if started.name == NAME:
        return f"{NAME} {command}"
    return f"python -m {NAME} {command}" if started.parts[-2:] == (NAME, "__main__.py") else f"python -m {module}"


def version() -> str:
    """What --version prints."""
    return f"{NAME} {VERSION}"
