"""Turns an out-of-memory error, wherever it was raised and however it was wrapped, into one line that says which limit would do."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lms3d.engine.prediction import Prediction
from lms3d.errors import DoesNotFit, StorageError
from lms3d.units import format_size

_MARKS = ("OOM when allocating", "RESOURCE_EXHAUSTED", "ResourceExhaustedError", "out of memory", "bad_alloc")


@contextmanager
def explained(what: str, limit_bytes: int, lms: bool, predict: Callable[[], Prediction]) -> Iterator[None]:
    """Turns an out-of-memory error in the block into DoesNotFit, which names the smallest limits.

    A full disk, which TensorFlow reports as the same kind of error, becomes a StorageError.

    what: the work, such as "isensee2017 at 96^3". predict: traces the step and predicts what it needs.
    """
    try:
        yield
    except (DoesNotFit, StorageError):
        raise
    except Exception as error:
        text = _chain(error)
        if os.strerror(errno.ENOSPC) in text:
            raise StorageError(f"a disk is full: {text}; free some space, or choose another --swap-dir") from error
        if not is_out_of_memory(error):
            raise
        raise exhausted_error(what, limit_bytes, lms, text, _quietly(predict)) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out somewhere in the chain of errors behind `error`."""
    return isinstance(error, MemoryError) or any(mark in _chain(error) for mark in _MARKS)


def exhausted_error(what: str, limit_bytes: int, lms: bool, text: str, prediction: Prediction | None) -> DoesNotFit:
    """The error for work that ran out of memory; `prediction` is None if the work could not even be traced."""
    tensor = re.search(r"OOM when allocating tensor with shape\s*(\[[\d, ]*\])", text)
    detail = f" for a tensor of shape {tensor.group(1)}" if tensor else ""
    with_or_without = "with" if lms else "without"
    begin = f"{what} does not fit into {format_size(limit_bytes)} {with_or_without} LMS: out of memory{detail}"
    if prediction is None:
        return DoesNotFit(f"{begin}; raise --memory-limit or lower --resolution or --batch-size")
    without, floor = prediction.unedited_limit_bytes, prediction.smallest_limit_bytes
    advice = "raise --memory-limit" if lms or floor > limit_bytes else "use --lms or raise --memory-limit"
    return DoesNotFit(
        f"{begin}. The smallest limit that would do is about {format_size(without)} without LMS and "
        f"{format_size(floor)} with LMS; {advice}",
        floor if lms else without,
    )


def _quietly(predict: Callable[[], Prediction]) -> Prediction | None:
    try:
        return predict()
    except Exception:  # out of memory again: the caller's message does without it
        return None


def _chain(error: BaseException) -> str:
    """The messages of an error and of all errors that caused it."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    return " ".join(f"{type(one).__name__}: {one}" for one in seen)
