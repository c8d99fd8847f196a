"""One rank of a pipeline without a network: takes batches as fast as they come, or as a device of some speed would, for as
long as the parent asks.

    python -m experiments.feeding.alone_rank '{"shards": ..., "order": "new", "rank": 0, "size": 2, "batch_size": 32,
        "device_speed": null}'

Each line on stdin is a number of seconds; each answer is a line of JSON. It ends with its stdin.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from experiments.harness.talk import Talk, asked

LEAD = 0.25
"""Share of a window that is let go by first: whatever lay in the buffers was not made in the window."""


def main(asked: dict[str, Any]) -> None:
    from lms3d.console import quiet_native_log

    talk = Talk()
    with quiet_native_log():
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")  # alone means without a device
        tf.config.list_logical_devices()
    from experiments.feeding import orders
    from experiments.feeding.images import training_part

    part = training_part(asked["shards"])
    order = orders.ORDERS[asked["order"]]
    batches = iter(order(part, batch_size=asked["batch_size"], seed=0, rank=asked["rank"], size=asked["size"]))
    # A pass: caches are full, files have been read, and tf.data has tuned itself.
    for _ in range(max(1, len(part) // asked["size"] // asked["batch_size"])):
        next(batches)
    talk.say(ready=True)
    for line in sys.stdin:
        talk.say(**take(batches, float(line), asked["batch_size"], asked["device_speed"]))


def take(
    batches: Iterator[Any], seconds: float, batch_size: int, device_speed: float | None = None
) -> dict[str, float]:  # fmt: skip
    """Batches of a window; it begins and ends where a batch ends, so that no part of one is counted.

    device_speed: images/s of the device that takes them. It sleeps as long as a step would last: like a GPU it computes
    without these cores, so that the pipeline works meanwhile, as far as it is made to.
    """
    step_seconds = batch_size / device_speed if device_speed else 0.0
    _until(batches, time.perf_counter() + LEAD * seconds, step_seconds)
    started, cpu = time.perf_counter(), time.process_time()
    count, waited = _until(batches, started + seconds, step_seconds)
    passed, cpu_passed = time.perf_counter() - started, time.process_time() - cpu
    return {"images": count * batch_size, "seconds": passed, "cpu_seconds": cpu_passed, "waited_seconds": waited}


def _until(batches: Iterator[Any], end: float, step_seconds: float) -> tuple[int, float]:
    """(batches, at least one; seconds that were waited for them)."""
    count, waited = 0, 0.0
    while not count or time.perf_counter() < end:
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        count += 1
        if step_seconds:
            time.sleep(step_seconds)
    return count, waited


if __name__ == "__main__":
    main(asked())
