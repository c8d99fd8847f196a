"""Tiers whose copies take their time: another part of this process's memory, behind a link of a stated rate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lms3d.engine.native import lanes
from lms3d.engine.native.lanes import Lane
from lms3d.engine.tiers import TIERS
from lms3d.engine.tiers.stream import StreamTier

RATES = (1e9, 200e6, 50e6)
"""Bytes per second each way."""


def slow_tier(rate: float = 0.0, latency_seconds: float = 0.0) -> type[StreamTier]:
    class SlowTier(StreamTier):
        name = "slow"

        @classmethod
        def make_lane(cls) -> Lane:
            return lanes.memory(rate, rate, latency_seconds)

    return SlowTier


@contextmanager
def registered(rate: float = 0.0, latency_seconds: float = 0.0) -> Iterator[None]:
    """`LMS(tier="slow")` knows it meanwhile."""
    TIERS.register("slow")(slow_tier(rate, latency_seconds))
    try:
        yield
    finally:
        TIERS.remove("slow")
