"""What `python -m tests.stress tests` tries and `make test` does not: tests that take minutes and have hardly ever failed, and many
times as many random examples.

Nothing is promised by such a test alone: `make test` tries the same on something smaller.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

VARIABLE = "LMS3D_THOROUGH"
THOROUGH = os.environ.get(VARIABLE) == "1"
TIMES = 20
"""So many times as many random examples."""
T = TypeVar("T")


def examples(number: int) -> int:
    """How many examples a random test draws, of `number` in `make test`."""
    return number * TIMES if THOROUGH else number


def also(*more: T) -> Sequence[T]:
    """The parameters that `make test` leaves out."""
    return more if THOROUGH else ()
