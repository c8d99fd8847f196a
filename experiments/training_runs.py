"""Training and prediction by the real commands, as experiments call them: each in a process of its own, resumable."""

from __future__ import annotations

import csv
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lms3d import errors


class CommandFailed(RuntimeError):
    """A command ended with an error, which it has told on stderr itself."""

    def __init__(self, command: Sequence[str], exit_code: int) -> None:
        super().__init__(
            f"exit code {exit_code} of `{shlex.join(command)}`; see its message above; what is finished is kept, run "
            "the same command again to go on"
        )
        self.exit_code = exit_code if exit_code in (2, 3, 130) else 1


def run(command: Sequence[str]) -> None:
    """Runs it; Ctrl-C is the command's to answer. CommandFailed where it ends with an error."""
    print("  $", shlex.join(map(_shown, command)), flush=True)
    process = subprocess.Popen(command)
    try:
        exit_code = process.wait()
    except KeyboardInterrupt:  # the terminal has sent Ctrl-C to the command too: let it save its checkpoint
        process.wait()
        raise errors.Interrupted("interrupted; run the same command again to go on") from None
    if exit_code:
        raise CommandFailed(command, exit_code)


def _shown(word: str) -> str:
    """Programs of this environment are on the PATH where it is activated."""
    path = Path(word)
    return path.name if path.parent == Path(sys.executable).parent else word


def training_seconds(history: Path) -> float:
    """Sum over the epochs: right for an interrupted run too."""
    with open(history, newline="", encoding="utf-8") as file:
        return sum(float(row["seconds"]) for row in csv.DictReader(file))


def data_folder(given: str | None) -> Path:
    """The data set's folder; the embedded one where none was given."""
    if given:
        return Path(given).expanduser().resolve()
    from data.phantoms import brains
    from lms3d.console import progress

    with progress() as report:
        return brains.write(brains.default_directory(), progress=report)
