"""The line that a person reads who waits for a plan."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lms3d import console
from lms3d.units import format_size

SILENT_SECONDS = 20.0
"""After a longer silence somebody takes the program for dead. Chosen, not measured."""


@contextmanager
def say_if_long(step: str, limit_bytes: int, note: str) -> Iterator[None]:
    """Prints a line, with this note, if the block takes longer than `SILENT_SECONDS`. One rank prints it for all of them."""
    line = f"lms: planning the {step} step for {format_size(limit_bytes)}{note}"
    timer = threading.Timer(SILENT_SECONDS, console.say, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
