"""What can go wrong for a user, and the exit code of each; `run` turns them into one line on stderr.

| exception            | exit code | meaning                                                          |
|----------------------|-----------|------------------------------------------------------------------|
| InputError           | 2         | a bad option, file or value                                      |
| StorageError         | 2         | a disk that is full, read-only or broken                         |
| Diverged             | 2         | the loss is no longer a number                                   |
| DoesNotFit           | 3         | the memory limit is too small; carries the smallest that would do |
| Interrupted          | 130       | Ctrl-C; the message says how to go on                            |

Any other exception that has an integer attribute `exit_code` is treated the same way (`data` and `models` cannot import
this module). Everything else is a defect of lms3d and keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


class InputError(ValueError):
    """The user gave something that cannot be used; the message names it, what was expected and what to do."""

    exit_code = 2


class StorageError(RuntimeError):
    """A disk is full or fails; the message names the path."""

    exit_code = 2


class Diverged(RuntimeError):
    """Training produced a loss that is not finite; the message says where and what to try."""

    exit_code = 2


class DoesNotFit(RuntimeError):
    """The work needs more memory than the limit; `smallest_limit_bytes` is the smallest that would do, if known."""

    exit_code = 3

    def __init__(self, message: str, smallest_limit_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_limit_bytes = smallest_limit_bytes


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after everything that is needed to go on was saved."""

    exit_code = 130


def run(main: Callable[[], int | None]) -> int:
    """Calls `main` and returns the exit code of the process (see the table above)."""
    try:
        return main() or 0
    except KeyboardInterrupt as stop:
        say(str(stop) or "interrupted")
        return Interrupted.exit_code
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if not isinstance(code, int):
            raise
        say(f"error: {error}")
        return code


def say(message: str) -> None:
    """One line on stderr."""
    print("lms3d:", " ".join(message.split()), file=sys.stderr, flush=True)
