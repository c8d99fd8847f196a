"""Training and prediction by the real commands, as experiments call them: each in a process of its own, resumable."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from lms3d.experiments.harness.command import stoppable


class CommandFailed(RuntimeError):
    """A command ended with an error, which it has told on stderr itself."""

    def __init__(self, command: Sequence[str], exit_code: int) -> None:
        super().__init__(
            f"exit code {exit_code} of `{shlex.join(command)}`; see its message above; what is finished is kept, run "
            "the same command again to go on"
        )
        self.exit_code = exit_code if exit_code in (2, 3, 130) else 1


def run(command: Sequence[str]) -> None:
    """Runs a command to its end. CommandFailed if it ends with an error."""
    print("  $", shlex.join(map(_shown, command)), flush=True)
    if code := exit_code(command):
        raise CommandFailed(command, code)


def exit_code(command: Sequence[str], log: IO[str] | None = None) -> int:
    """The exit code of a command. Ctrl-C reaches the command, too, which saves its checkpoint; then Interrupted. log: its
    output goes there."""
    where = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT} if log else {}
    process = subprocess.Popen(command, **where)  # type: ignore[call-overload]
    with stoppable():
        try:
            return int(process.wait())
        except KeyboardInterrupt:
            process.wait()
            raise


def _shown(word: str) -> str:
    """A word as a user would type it: programs of this environment by their name, which is on the PATH once it is activated."""
    path = Path(word)
    return path.name if path.parent == Path(sys.executable).parent else word


def data_folder(given: str | None) -> Path:
    """The data set's folder; the embedded one if none is given."""
    if given:
        return Path(given).expanduser().resolve()
    from lms3d.console import progress
    from lms3d.data.phantoms import brains

    with progress() as report:
        return brains.write(brains.default_directory(), progress=report)
