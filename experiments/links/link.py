"""A link between a device and its swap tier, as a value and as one word; and what a copy costs this machine's processor, the limit
of what can be emulated. No TensorFlow at import."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lms3d.engine.tuning import PROBE_BYTES, PROBE_FILES
from lms3d.errors import InputError
from lms3d.units import parse_size

_WORD = re.compile(r"(?P<out>[^/+@:]+)(:(?P<back>[^/+@]+))?/s(\+(?P<latency>\d+(\.\d+)?)us)?(@(?P<bus>.+))?")
EXAMPLES = "400MB/s, 2.4GB/s+50us or 12GB/s:14GB/s (out:back)"

COPY_ROUNDS = 4
COPY_SECONDS = "copy_processor_seconds"
"""The counter of the processor seconds of copies both ways, which a device would make by itself."""
STEP_SECONDS = "step_processor_seconds"
"""The counter of the processor seconds of the whole process in a step."""


@dataclass(frozen=True, kw_only=True)
class SwapLink:
    """The bytes per second each way, out of the device and back, and the seconds that a transfer takes besides.

    bus: a folder whose files several processes share (LINK-1); None: the link is this process's own.
    """

    out_bytes_per_second: float
    back_bytes_per_second: float
    latency_seconds: float = 0.0
    bus: Path | None = None

    @classmethod
    def parse(cls, word: str) -> SwapLink:
        """The link that `word` spells; InputError for other words."""
        found = _WORD.fullmatch(word.replace("/s:", ":"))
        if found is None:
            raise InputError(f"{word!r} is not a link; write for example {EXAMPLES}")
        out = parse_size(found["out"])
        return cls(
            out_bytes_per_second=out,
            back_bytes_per_second=parse_size(found["back"]) if found["back"] else out,
            latency_seconds=float(found["latency"] or 0) / 1e6,
            bus=Path(found["bus"]) if found["bus"] else None,
        )

    def __str__(self) -> str:
        """The word; rates to four figures."""
        out, back = (_rate(one) for one in (self.out_bytes_per_second, self.back_bytes_per_second))
        latency = f"+{self.latency_seconds * 1e6:.0f}us" if self.latency_seconds else ""
        bus = f"@{self.bus}" if self.bus else ""
        return f"{out if out == back else f'{out}:{back}'}/s{latency}{bus}"


def _rate(bytes_per_second: float) -> str:
    return f"{float(f'{bytes_per_second / 1e6:.4g}'):g}MB" if bytes_per_second < 1e12 else f"{bytes_per_second:.0f}B"


@functools.cache
def copy_seconds_per_byte() -> float:
    """Processor seconds of a lane's own copy, by one thread, of more bytes than the caches hold; the best of some rounds."""
    import tensorflow as tf

    from lms3d.data import stream
    from lms3d.engine.native import lanes
    from lms3d.engine.native.library import library

    lane, swap_out = lanes.memory(), library().operations.lms_swap_out
    arrays = [stream.aligned_empty((PROBE_BYTES,), np.uint8) for _ in range(PROBE_FILES)]
    slots = [lane.reserve(PROBE_BYTES) for _ in arrays]
    for array in arrays:
        array.fill(1)  # its pages are there
    seconds = []
    for _ in range(COPY_ROUNDS):
        for array, slot in zip(arrays, slots, strict=True):
            # Not memory of TensorFlow's pool, which may be smaller.
            swap_out(x=tf.experimental.dlpack.from_dlpack(array.__dlpack__()), lane=lane.number, slot=slot)
        lane.settle()
        counted = lane.take()
        seconds.append(counted.processor_seconds / counted.out_bytes)
    lane.close()
    return min(seconds)
