"""One process that profiles some steps on each order in turns: real training steps, or those of a device that sleeps.

python -m experiments.feeding.timeline_rank '{"shards": ..., "folders": {"old": DIR, ..}, "ranks": 2, "device_speed": 600, ...}'

It is rank 0 of so many ranks: it takes the samples that this rank would take. A device that sleeps leaves all cores to the
pipeline, as a GPU does; its sleep stands in the profile as an op, `device:Sleep`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from lms3d import errors
from lms3d.ranks.world import World

LEAD_STEPS = 12
"""Before the profile: buffers fill, tf.data tunes itself."""


def main(arguments: list[str]) -> int:
    return errors.run(lambda: _main(json.loads(arguments[0])))


def _main(asked: dict[str, Any]) -> None:
    from lms3d.device.startup import start_tensorflow

    if asked["cores"] is not None:  # before TensorFlow counts them
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked["cores"]])
    start_tensorflow(seed=0, precision=asked["precision"], without_gpu=asked["device_speed"] is not None)
    step = _step(asked)
    for order, folder in asked["folders"].items():
        _profile(order, folder, step, asked)


def _profile(order: str, folder: str, step: Callable[[Any], None], asked: dict[str, Any]) -> None:
    import tensorflow as tf

    from experiments.feeding import orders
    from experiments.feeding.images import training_part
    from lms3d.engine.tensorflow import marks

    part = training_part(asked["shards"])
    batches = iter(orders.ORDERS[order](part, batch_size=asked["batch_size"], seed=0, rank=0, size=asked["ranks"]))
    for number in range(LEAD_STEPS + asked["steps"]):
        if number == LEAD_STEPS:
            tf.profiler.experimental.start(folder)
        batch = next(batches)
        with marks.step("train", number):
            step(batch)
    tf.profiler.experimental.stop()


def _step(asked: dict[str, Any]) -> Callable[[Any], None]:
    """Batch -> a step, done when this returns."""
    import tensorflow as tf

    if asked["device_speed"] is None:
        from experiments.feeding import loop

        return loop.stepper(loop.network(asked["model"], asked["resolution"], World()))

    def sleep(_: Any) -> None:
        with tf.profiler.experimental.Trace("device:Sleep"):
            time.sleep(asked["batch_size"] / asked["device_speed"])

    return sleep


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
