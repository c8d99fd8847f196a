"""One rank that trains and is measured: on each order of the input pipeline in turns, or for the ResNet-50 benchmark in laps on one
kind of images. Rank 0 writes what all of them found.

horovodrun -np 2 python -m experiments.feeding.training_rank '{"output": "part.json", "orders": ["old", "best"], "rounds": 2, ...}'
horovodrun -np 2 python -m experiments.feeding.training_rank '{"output": "part.json", "data": "synthetic", "laps": 6, ...}'
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

from lms3d.experiments.harness.ranks import rank_main
from lms3d.ranks.world import World

LEAD_STEPS = 3
"""Before a lap on an order: buffers fill, tf.data tunes itself."""
SYNTHETIC, REAL = "synthetic", "real"


def main(arguments: list[str]) -> int:
    """Measures on this rank. Returns the exit code."""
    return rank_main(arguments, lambda asked, world: (_laps if "laps" in asked else _rounds)(asked, world))


def _laps(asked: dict[str, Any], world: World) -> dict[str, Any]:
    from lms3d.device import machine, memory
    from lms3d.experiments.feeding import loop

    step = loop.stepper(loop.network(asked["model"], asked["resolution"], world))
    if asked["data"] == SYNTHETIC:
        batches: Iterator[Any] = itertools.repeat(synthetic(asked["batch_size"], asked["resolution"], world.rank))
    else:
        batches = iter(_dataset("best", asked, world))
    loop.lap(batches, step, asked["warmup"])
    laps = [_lap(batches, step, asked, world) for _ in range(asked["laps"])]
    return {"laps": laps, "machines": world.everyone(machine.description(memory.gpu_name()))}


def _rounds(asked: dict[str, Any], world: World) -> dict[str, Any]:
    from lms3d.experiments.feeding import loop

    step = loop.stepper(loop.network(asked["model"], asked["resolution"], world))
    orders, found = asked["orders"], []
    for k in range(asked["rounds"]):
        turn = [*orders[k % len(orders) :], *orders[: k % len(orders)]]
        found.append({order: _on_order(order, step, asked, world) for order in turn})
    return {"rounds": found}


def _on_order(order: str, step: Any, asked: dict[str, Any], world: World) -> dict[str, float]:
    """A lap on a fresh iterator, so that nothing was made in the turns of other orders."""
    from lms3d.experiments.feeding import loop

    batches = iter(_dataset(order, asked, world))
    loop.lap(batches, step, LEAD_STEPS)
    return _lap(batches, step, asked, world)


def _lap(batches: Iterator[Any], step: Any, asked: dict[str, Any], world: World) -> dict[str, float]:
    from lms3d.experiments.feeding import loop

    world.wait()  # all ranks begin a lap together
    return together(world.everyone(loop.lap(batches, step, asked["steps"])), asked["batch_size"])


def together(laps: list[Any], batch_size: int) -> dict[str, float]:
    """A lap of all ranks. They average their gradients in every step, so the slowest sets the time of all."""
    seconds, waiting = max(lap.seconds for lap in laps), [lap.waited_seconds / lap.seconds for lap in laps]
    return {
        "images_per_second": sum(lap.steps for lap in laps) * batch_size / seconds,
        "waiting": sum(waiting) / len(waiting),
        "waiting_most": max(waiting),
        "cores": sum(lap.cpu_seconds for lap in laps) / seconds,
    }


def _dataset(order: str, asked: dict[str, Any], world: World) -> Any:
    from lms3d.experiments.feeding import orders
    from lms3d.experiments.feeding.images import training_part

    part = training_part(asked["shards"])
    return orders.ORDERS[order](part, batch_size=asked["batch_size"], seed=0, rank=world.rank, size=world.size)


def synthetic(batch_size: int, resolution: int, seed: int) -> tuple[Any, Any]:
    """Images (B, N, N, 3) float32 and labels (B, 14) that lie on the device from the start: nothing is loaded."""
    import tensorflow as tf

    from lms3d.device.memory import compute_device

    with tf.device(compute_device()):
        images = tf.random.stateless_normal((batch_size, resolution, resolution, 3), (seed, 0))
        labels = tf.cast(tf.random.stateless_uniform((batch_size, 14), (seed, 1)) < 0.05, tf.float32)
    return images, labels


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
