"""The exception of this package: wrong input, described in one line."""

from __future__ import annotations

import re

from lms3d.common.system_errors import DISK_ADVICE, PATH_ADVICE, one_line

LONGEST = 1000
"""The most characters of a line."""


class DataError(ValueError):
    """Wrong input. The message is one line: "<file or option>: found <this>; expected <that>; <what to do>".

    Entry points print the line without a traceback and end with `exit_code`.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, LONGEST))


class NoCaseError(DataError):
    """A folder holds no case in any of the layouts. It may hold something else that is not damaged."""


def in_words(error: OSError) -> DataError | None:
    """An OSError of a disk, a limit on files or a path as a DataError; None for any other error, which is a defect.

    Any call on a file may raise it, such as the one that closes a lock.
    """
    path = error.filename or "a file"
    if error.errno in DISK_ADVICE:
        return DataError(f"{path}: found {error.strerror}; expected a disk that works; {DISK_ADVICE[error.errno]}")
    if error.errno in PATH_ADVICE and error.filename:
        return DataError(
            f"{path}: found {error.strerror}; expected a path that you can use; {PATH_ADVICE[error.errno]}"
        )
    return None


def unwrap(error: BaseException) -> DataError | None:
    """The DataError inside an error of TensorFlow; None if there is none.

    tf.data turns an exception of a Python loader into one of its own, and keeps only the text `DataError: <line>`.
    """
    if isinstance(error, DataError):
        return error
    match = re.search(r"DataError: (.+)", str(error))
    return DataError(match.group(1)) if match else None
