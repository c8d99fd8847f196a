"""From an out-of-memory error, wherever it came up and however it was wrapped, to one line that says what would do."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lms3d.errors import DoesNotFit, StorageError
from lms3d.units import format_size

if TYPE_CHECKING:
    from lms3d.keras_step.report import Report

_MARKS = ("OOM when allocating", "RESOURCE_EXHAUSTED", "ResourceExhaustedError", "out of memory", "bad_alloc")


@contextmanager
def explained(what: str, limit_bytes: int, lms: bool, estimate: Callable[[], Report]) -> Iterator[None]:
    """Turns running out of memory inside the block into DoesNotFit that names the smallest limits.

    A full disk, which TensorFlow reports as the same kind of error, becomes StorageError.

    what: the work, such as "isensee2017 at 96^3". estimate: traces the step and predicts what it needs.
    """
    try:
        yield
    except (DoesNotFit, StorageError):
        raise
    except Exception as error:
        text = _story(error)
        if os.strerror(errno.ENOSPC) in text:
            raise StorageError(f"a disk is full: {text}; free some space, or choose another --swap-dir") from error
        if not is_out_of_memory(error):
            raise
        raise does_not_fit(what, limit_bytes, lms, text, _quietly(estimate)) from error


def is_out_of_memory(error: BaseException) -> bool:
    """True where memory ran out somewhere in the story behind `error`."""
    return isinstance(error, MemoryError) or any(mark in _story(error) for mark in _MARKS)


def does_not_fit(what: str, limit_bytes: int, lms: bool, text: str, report: Report | None) -> DoesNotFit:
    """The error for work that ran out of memory; `report` is None if it could not even be traced."""
    tensor = re.search(r"OOM when allocating tensor with shape\s*(\[[\d, ]*\])", text)
    detail = f" for a tensor of shape {tensor.group(1)}" if tensor else ""
    with_or_without = "with" if lms else "without"
    begin = f"{what} does not fit into {format_size(limit_bytes)} {with_or_without} LMS: out of memory{detail}"
    if report is None:
        return DoesNotFit(f"{begin}; raise --memory-limit or lower --resolution or --batch-size")
    without = report.unedited_limit_bytes
    floor = min(report.floor_bytes or without, without)
    advice = "raise --memory-limit" if lms or floor > limit_bytes else "use --lms or raise --memory-limit"
    return DoesNotFit(
        f"{begin}. The smallest limit that would do is about {format_size(without)} without LMS and "
        f"{format_size(floor)} with LMS; {advice}",
        floor if lms else without,
    )


def _quietly(estimate: Callable[[], Report]) -> Report | None:
    try:
        return estimate()
    except Exception:  # out of memory again: the caller's message does without it
        return None


def _story(error: BaseException) -> str:
    """The messages of an error and of all that caused it."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    return " ".join(f"{type(one).__name__}: {one}" for one in seen)
