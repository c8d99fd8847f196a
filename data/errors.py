"""The one exception of this package: wrong input, told in one line."""

from __future__ import annotations

import re
from pathlib import Path


class DataError(ValueError):
    """Wrong input. The message is a single line: which file, what was found, what was expected, what to do.

    Entry points print the line without a traceback and end with `exit_code`.
    """

    exit_code = 2


def data_error(where: str | Path, *, found: str, expected: str, advice: str) -> DataError:
    """A DataError with the four parts that a reader needs, in the order in which they are needed."""
    return DataError(_one_line(f"{where}: found {found}; expected {expected}; {advice}"))


def unwrap(error: BaseException) -> DataError | None:
    """The DataError inside an error of TensorFlow, or None.

    tf.data turns an exception of a Python loader into one of its own and keeps only the text `DataError: <line>`.
    """
    if isinstance(error, DataError):
        return error
    match = re.search(r"DataError: (.+)", str(error))
    return DataError(match.group(1).strip()) if match else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
