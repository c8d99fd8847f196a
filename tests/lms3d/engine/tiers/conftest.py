"""System calls that a test replaces, until it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.lms3d.engine.tiers.system_calls import replaced


@pytest.fixture
def replace() -> Iterator[Callable[..., None]]:
    """`replace(name, call)`: see `system_calls.replaced`."""
    with ExitStack() as stack:
        yield lambda name, call: stack.enter_context(replaced(name, call))
