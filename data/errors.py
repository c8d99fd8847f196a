"""The one exception of this package: wrong input, told in one line; and what to do about the system's own errors."""

from __future__ import annotations

import errno
import re

LONGEST = 1000
"""Characters of a line."""

ADVICE = {
    **dict.fromkeys(
        (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE), "free some space there, or mend the disk"
    ),
    errno.EFBIG: "raise the limit of this shell (`ulimit -f unlimited`), or choose another disk",
    errno.EMFILE: "raise the limit of this shell (`ulimit -n 1024`)",
    errno.ENFILE: "raise the limit of this machine (`sysctl fs.file-max`), or end other programs",
}
"""What to do about an OSError of a disk, or of a limit of files, by its number."""

OF_PATHS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "ask its owner to let you in, or name another"),
    errno.ENAMETOOLONG: "choose a shorter one",
    errno.ELOOP: "mend the links",
}
"""What to do about one of a path that the user named."""


class DataError(ValueError):
    """Wrong input. The message is one line: "<file or option>: found <this>; expected <that>; <what to do>".

    Entry points print the line without a traceback and end with `exit_code`.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        if len(line) > LONGEST:  # a file may hold a value of any length
            line = f"{line[: LONGEST // 2]} [...] {line[-LONGEST // 4 :]}"
        super().__init__(line)


class NoCaseError(DataError):
    """A folder holds none of the layouts; it may hold something else that is not damaged."""


def in_words(error: OSError) -> DataError | None:
    """An error of a disk, a limit of files or a path as the user's; None for others, which are defects.

    It may come from any call on a file, such as the one that closes a lock.
    """
    where = error.filename or "a file"
    if error.errno in ADVICE:
        return DataError(f"{where}: found {error.strerror}; expected a disk that works; {ADVICE[error.errno]}")
    if error.errno in OF_PATHS and error.filename:
        return DataError(f"{where}: found {error.strerror}; expected a path that you can use; {OF_PATHS[error.errno]}")
    return None


def unwrap(error: BaseException) -> DataError | None:
    """The DataError inside an error of TensorFlow, or None.

    tf.data turns an exception of a Python loader into one of its own and keeps only the text `DataError: <line>`.
    """
    if isinstance(error, DataError):
        return error
    match = re.search(r"DataError: (.+)", str(error))
    return DataError(match.group(1)) if match else None
