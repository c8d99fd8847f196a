"""One rank of the ResNet-50 benchmark; rank 0 writes what all of them found.

horovodrun -np 2 python -m experiments.feeding.benchmark_rank '{"output": "part.json", "data": "synthetic", ...}'
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

from lms3d.experiments.harness.ranks import rank_main
from lms3d.ranks.world import World

SYNTHETIC, REAL = "synthetic", "real"


def main(arguments: list[str]) -> int:
    """Measures on this rank. Returns the exit code."""
    return rank_main(arguments, _laps)


def _laps(asked: dict[str, Any], world: World) -> dict[str, Any]:
    from lms3d.device import machine, memory
    from lms3d.experiments.feeding import loop

    step = loop.stepper(loop.network("resnet50", asked["resolution"], world))
    batches = _batches(asked, world)
    loop.lap(batches, step, asked["warmup"])
    laps = []
    for _ in range(asked["laps"]):
        world.wait()  # all ranks begin a lap together
        laps.append(together(world.everyone(loop.lap(batches, step, asked["steps"])), asked["batch_size"]))
    return {"laps": laps, "machines": _unique(world.everyone(machine.description(memory.gpu_name())))}


def together(laps: list[Any], batch_size: int) -> dict[str, float]:
    """A lap of all ranks. They average their gradients in every step, so the slowest sets the time of all."""
    seconds = max(lap.seconds for lap in laps)
    return {
        "images_per_second": sum(lap.steps for lap in laps) * batch_size / seconds,
        "waiting": sum(lap.waited_seconds for lap in laps) / sum(lap.seconds for lap in laps),
        "cores": sum(lap.cpu_seconds for lap in laps) / seconds,
    }


def _batches(asked: dict[str, Any], world: World) -> Iterator[Any]:
    if asked["data"] == SYNTHETIC:
        return itertools.repeat(synthetic(asked["batch_size"], asked["resolution"], world.rank))
    from lms3d.data.chest_xray import pipeline
    from lms3d.experiments.feeding.images import training_part

    part = training_part(asked["shards"])
    return iter(
        pipeline.training_dataset(
            part, batch_size=asked["batch_size"], seed=0, rank=world.rank, size=world.size
        )
    )  # fmt: skip


def synthetic(batch_size: int, resolution: int, seed: int) -> tuple[Any, Any]:
    """Images (B, N, N, 3) float32 and labels (B, 14) that lie on the device from the start: nothing is loaded."""
    import tensorflow as tf

    from lms3d.device.memory import compute_device

    with tf.device(compute_device()):
        images = tf.random.stateless_normal((batch_size, resolution, resolution, 3), (seed, 0))
        labels = tf.cast(tf.random.stateless_uniform((batch_size, 14), (seed, 1)) < 0.05, tf.float32)
    return images, labels


def _unique(machines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each kind of machine once, with the number of its ranks."""
    kinds: list[dict[str, Any]] = []
    for machine in machines:
        known = next((kind for kind in kinds if {k: v for k, v in kind.items() if k != "ranks"} == machine), None)
        if known is None:
            kinds.append({**machine, "ranks": 1})
        else:
            known["ranks"] += 1
    return kinds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
