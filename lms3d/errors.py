"""The errors that users see, and their exit codes. `run` turns each error into one line on stderr.

| exception            | exit code | meaning                                                          |
|----------------------|-----------|------------------------------------------------------------------|
| InputError           | 2         | a bad option, file or value                                      |
| StorageError         | 2         | a disk that is full, read-only or broken                         |
| Diverged             | 2         | the loss is no longer a number                                   |
| DoesNotFit           | 3         | the memory limit is too small; carries the smallest that would do |
| RankLost             | 1         | another rank is gone; one of those left has reported it          |
| Interrupted          | 130       | Ctrl-C; the message says how to go on                            |

Any other exception with an integer attribute `exit_code` is treated the same way (`data` and `models` cannot import this module),
and so is an OSError of a disk. Everything else is a defect of lms3d and keeps its traceback.

With several ranks, rank 0 reports an error that all of them have; each rank reports an error of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

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
    """The work needs more memory than the limit. `smallest_limit_bytes` is the smallest limit that would do; None: not known."""

    exit_code = 3

    def __init__(self, message: str, smallest_limit_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_limit_bytes = smallest_limit_bytes


class RankLost(RuntimeError):
    """Another rank of a job has died or hangs. `lost_rank.watched` has reported it on one rank for all."""

    exit_code = 1


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after everything that a resume needs was saved."""

    exit_code = 130


def run(main: Callable[[], int | None]) -> int:
    """Calls `main` and returns the exit code of the process (see the table above).

    Files are readable for the user alone (0600 in 0700), since they are made of patients' data. A folder's default ACL overrules
    that.
    """
    umask = os.umask(0o077)
    try:
        return main() or 0
    except KeyboardInterrupt as stop:
        if not _is_told(stop):
            say(str(stop) or "interrupted")
        return Interrupted.exit_code
    except Exception as raised:
        error = _in_words(raised)
        code = getattr(error, "exit_code", None)
        if _is_told(error):
            return code if isinstance(code, int) else 1
        if not isinstance(code, int):
            raise
        if not isinstance(error, RankLost):
            say(f"error: {error}")
        return code
    finally:
        os.umask(umask)


_ADVICE = {
    **dict.fromkeys(
        (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE), "free some space there, or mend the disk"
    ),
    errno.EFBIG: "raise the limit of this shell (`ulimit -f unlimited`), or choose another disk",
    errno.EMFILE: "raise the limit of this shell (`ulimit -n 1024`)",
    errno.ENFILE: "raise the limit of this machine (`sysctl fs.file-max`), or end other programs",
}
_ADVICE_ON_PATHS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "ask its owner to let you in, or name another"),
    errno.ENAMETOOLONG: "choose a shorter one",
    errno.ELOOP: "mend the links",
}
"""The error of a path that the user named -> what to do. `data.errors` has the same: this module may not import it."""


def _in_words(error: Exception) -> Exception:
    """The error as one that a user understands, if it is of a disk, a limit of files or a path; any other is returned unchanged."""
    if isinstance(error, OSError) and error.errno in _ADVICE:
        return StorageError(f"{error.filename or 'a file'}: {error.strerror}; {_ADVICE[error.errno]}")
    if isinstance(error, OSError) and error.errno in _ADVICE_ON_PATHS and error.filename:
        return InputError(f"{error.filename}: {error.strerror}; {_ADVICE_ON_PATHS[error.errno]}")
    return error


def of_all_ranks(error: E) -> E:
    """The same error, marked as one that every rank of a distributed run raises at this place."""
    error.is_of_all_ranks = True  # type: ignore[attr-defined]
    return error


def is_of_all_ranks(error: BaseException) -> bool:
    """Whether this error, or one that caused it, is marked as one that every rank raises."""
    return any(getattr(one, "is_of_all_ranks", False) for one in _story(error))


def tell_once(error: BaseException, aloud: bool) -> None:
    """Prints now what `run` would print; `run` then prints nothing for this error. aloud: False on all ranks but one."""
    error.is_told = True  # type: ignore[attr-defined]
    if not aloud:
        return
    if isinstance(error, KeyboardInterrupt):
        say(str(error) or "interrupted")
    elif isinstance(getattr(error, "exit_code", None), int):
        say(f"error: {error}")
    else:
        traceback.print_exception(error)


def _is_told(error: BaseException) -> bool:
    return getattr(error, "is_told", False)


def _story(error: BaseException) -> Iterator[BaseException]:
    """The error, then the errors that caused it."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        current = current.__cause__ or current.__context__


def say(message: str) -> None:
    """Prints one line on stderr, if that is still open."""
    with contextlib.suppress(OSError):  # a terminal that is gone
        print("lms3d:", line(message), file=sys.stderr, flush=True)


def line(message: str) -> str:
    """The message as one line of a readable length: a file may hold a value of any length."""
    text = " ".join(message.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} [...] {text[-LONGEST // 4 :]}"
