"""The one exception of this package: wrong input, told in one line."""

from __future__ import annotations

import re


class DataError(ValueError):
    """Wrong input. The message is one line: "<file or option>: found <this>; expected <that>; <what to do>".

    Entry points print the line without a traceback and end with `exit_code`.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def unwrap(error: BaseException) -> DataError | None:
    """The DataError inside an error of TensorFlow, or None.

    tf.data turns an exception of a Python loader into one of its own and keeps only the text `DataError: <line>`.
    """
    if isinstance(error, DataError):
        return error
    match = re.search(r"DataError: (.+)", str(error))
    return DataError(match.group(1)) if match else None
