"""The errors that users see, and their exit codes. `run` prints each as one line on stderr.

| exception            | exit code | meaning                                                          |
|----------------------|-----------|------------------------------------------------------------------|
| InputError           | 2         | a bad option, file or value                                      |
| StorageError         | 2         | a disk that is full, read-only or broken                         |
| Diverged             | 2         | the loss is no longer a number                                   |
| DoesNotFit           | 3         | the memory limit is too small; holds the smallest that would do  |
| RankLost             | 1         | another rank is gone; one of the ranks left has reported it      |
| Interrupted          | 130       | Ctrl-C; the message says how to continue                         |

Any other exception with an integer attribute `exit_code` is treated alike, since `data` and `models` cannot import this module. So
is an OSError of a disk or a path. Every other exception is a defect of lms3d and keeps its traceback.

With several ranks, rank 0 reports an error that all ranks have. Each rank reports an error of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

from lms3d.common import extras, permissions
from lms3d.common.system_errors import DISK_ADVICE, PATH_ADVICE, one_line

E = TypeVar("E", bound=BaseException)
LONGEST = 1500
"""The most characters of a line on stderr."""


class InputError(ValueError):
    """An option, file or value is wrong; the message names it, what was expected and what to do."""

    exit_code = 2


class StorageError(RuntimeError):
    """A disk is full or fails; the message names the path."""

    exit_code = 2


class Diverged(RuntimeError):
    """Training produced a loss that is not finite; the message says where and what to try."""

    exit_code = 2


class DoesNotFit(RuntimeError):
    """The work needs more memory than the limit. `smallest_limit_bytes`: the smallest limit that would do, if known."""

    exit_code = 3

    def __init__(self, message: str, smallest_limit_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_limit_bytes = smallest_limit_bytes


class RankLost(RuntimeError):
    """Another rank of the job has died or hangs. `lost_rank.watched` has reported it, on one rank for all."""

    exit_code = 1


class Interrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C, and everything needed to resume is saved."""

    exit_code = 130


def run(main: Callable[[], int | None]) -> int:
    """The exit code of the process after `main` (see the table above). Prints the error if it raised one.

    Files that `main` writes are for the user alone (mode 0600 in folders of 0700), since they are made from patients' data.
    `LMS3D_UMASK` (`lms3d.common.permissions`) and a default ACL of a folder override that.
    """
    umask = os.umask(permissions.PRIVATE)
    try:
        os.umask(_chosen_umask())
        return main() or 0
    except KeyboardInterrupt as stop:
        if not _is_reported(stop):
            say(str(stop) or "interrupted")
        return Interrupted.exit_code
    except Exception as raised:
        error = _in_words(raised)
        code = getattr(error, "exit_code", None)
        if _is_reported(error):
            return code if isinstance(code, int) else 1
        if not isinstance(code, int):
            raise
        if not isinstance(error, RankLost):
            say(f"error: {error}")
        return code
    finally:
        os.umask(umask)


def _chosen_umask() -> int:
    try:
        return permissions.umask()
    except ValueError as error:
        raise InputError(str(error)) from None


def _in_words(error: Exception) -> Exception:
    """An OSError of a disk, a limit on files or a path, or a missing package of an extra, as an error of the user's; any other
    error unchanged."""
    if missing := extras.advice(error):
        return InputError(missing)
    if isinstance(error, OSError) and error.errno in DISK_ADVICE:
        return StorageError(f"{error.filename or 'a file'}: {error.strerror}; {DISK_ADVICE[error.errno]}")
    if isinstance(error, OSError) and error.errno in PATH_ADVICE and error.filename:
        return InputError(f"{error.filename}: {error.strerror}; {PATH_ADVICE[error.errno]}")
    return error


def of_all_ranks(error: E) -> E:
    """The same error, marked as one that every rank of the job raises at this place."""
    error.is_of_all_ranks = True  # type: ignore[attr-defined]
    return error


def is_of_all_ranks(error: BaseException) -> bool:
    """Whether every rank raises this error, or an error that caused it."""
    return any(getattr(cause, "is_of_all_ranks", False) for cause in _chain(error))


def report_once(error: BaseException, aloud: bool) -> None:
    """Prints the error now, so that `run` prints nothing for it later. aloud: False on all ranks but one."""
    error.is_reported = True  # type: ignore[attr-defined]
    if not aloud:
        return
    if isinstance(error, KeyboardInterrupt):
        say(str(error) or "interrupted")
    elif isinstance(getattr(error, "exit_code", None), int):
        say(f"error: {error}")
    else:
        traceback.print_exception(error)


def _is_reported(error: BaseException) -> bool:
    return getattr(error, "is_reported", False)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and the errors that caused it."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        current = current.__cause__ or current.__context__


def say(message: str) -> None:
    """Prints one line on stderr, if stderr still works."""
    with contextlib.suppress(OSError):  # the terminal is gone
        print("lms3d:", line(message), file=sys.stderr, flush=True)


def line(message: str) -> str:
    """A message as one line of at most `LONGEST` characters."""
    return one_line(message, LONGEST)
