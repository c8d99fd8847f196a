"""A swap tier with the link of another machine: copies to this process's memory and back over a native lane at the link's rate.

The ops, and when memory changes hands, are as on a GPU (`lms3d.engine.tiers.stream`). `native/src/memory_lane.cc` says what a
link does, with one thread for each direction: LINK-1 to LINK-4.

For experiments only: swapped tensors lie in this process's memory, and the copies cost time of the processor that computes.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import ClassVar

import tensorflow as tf

from lms3d.engine.native import lanes
from lms3d.engine.native.lanes import Lane
from lms3d.engine.native.library import library
from lms3d.engine.tiers import TIERS
from lms3d.engine.tiers.base import TierSpeed
from lms3d.engine.tiers.stream import StreamTier, as_counters
from lms3d.engine.tuning import SMALL_COPIES
from lms3d.experiments.links.link import COPY_SECONDS, SwapLink, copy_seconds_per_byte

_LINE = 64  # bytes that a processor's caches load at once


class LinkTier(StreamTier):
    """The tier of a link: `register` makes a subclass for each. total: what all tiers of the class have moved so far."""

    link: ClassVar[SwapLink]
    total: ClassVar[dict[str, float]]

    @classmethod
    def make_lane(cls) -> Lane:
        link = cls.link
        return lanes.memory(link.out_bytes_per_second, link.back_bytes_per_second, link.latency_seconds, link.bus)

    @classmethod
    def prepare(cls, directory: Path | None) -> None:
        library()

    def take_counters(self) -> dict[str, float]:
        counted = self.lane.take()
        counters = as_counters(counted) | {COPY_SECONDS: counted.processor_seconds}
        for name, value in counters.items():
            self.total[name] = self.total.get(name, 0.0) + value
        return counters

    @classmethod
    def place(cls, directory: Path | None) -> str:
        return f"native lane {cls.link}"

    @classmethod
    def speed(cls, device: str, directory: Path | None) -> TierSpeed:
        """The stated rates. A second of transfer takes from the step what its copy takes of a processor: on few cores the
        others wait for the part of an op that is late."""
        rates = cls.link.out_bytes_per_second, cls.link.back_bytes_per_second
        copying = copy_seconds_per_byte() * sum(rates) / 2
        return TierSpeed(
            swap_out_bytes_per_second=rates[0],
            swap_in_bytes_per_second=rates[1],
            swap_share=copying,
            node_seconds=_node_seconds(),
        )


def register(link: SwapLink) -> type[LinkTier]:
    """The tier of a link, under a name that `LMS(tier=...)` knows in this process."""
    name = f"link {link}"
    if name in TIERS:
        found = TIERS[name]
        assert issubclass(found, LinkTier), "the names of links are theirs alone"
        return found
    made = type("RegisteredLinkTier", (LinkTier,), {"name": name, "link": link, "total": {}})
    return TIERS.register(name)(made)


@functools.cache
def _node_seconds() -> float:
    """Processor seconds of one transfer of a few bytes, over a link that is as fast as can be: what ops and threads cost."""
    fast = SwapLink(out_bytes_per_second=1e15, back_bytes_per_second=1e15)
    tier = type("FastLinkTier", (LinkTier,), {"name": "fast", "link": fast, "total": {}})()

    @tf.function(autograph=False)
    def there_and_back(tensor: tf.Tensor) -> tf.Tensor:
        for number in range(SMALL_COPIES):
            tensor = tensor + 1.0
            out = tier.swap_out(tensor, f"probe/swap_out/{number}")
            tier.hold(tensor, out, f"probe/hold/{number}", ())
            tensor = tier.swap_in(out.outputs[0], tensor, f"probe/swap_in/{number}", ())
        return tensor

    start, seconds = tf.ones((_LINE,)), []
    there_and_back(start)  # traces
    for _ in range(4):
        began = time.process_time()
        there_and_back(start).numpy()
        seconds.append(time.process_time() - began)
    tier.close()
    return min(seconds) / (2 * SMALL_COPIES)
