"""One rank of training on each order in turns; rank 0 writes what all of them found.

horovodrun -np 2 python -m experiments.feeding.training_rank '{"output": "part.json", "shards": ..., ...}'
"""

from __future__ import annotations

import sys
from typing import Any

from lms3d.experiments.harness.ranks import rank_main
from lms3d.ranks.world import World

LEAD_STEPS = 3
"""Before a lap: buffers fill, tf.data tunes itself."""


def main(arguments: list[str]) -> int:
    """Measures on this rank. Returns the exit code."""
    return rank_main(arguments, _rounds)


def _rounds(asked: dict[str, Any], world: World) -> dict[str, Any]:
    from lms3d.experiments.feeding import loop

    step = loop.stepper(loop.network(asked["model"], asked["resolution"], world))
    orders, found = asked["orders"], []
    for k in range(asked["rounds"]):
        turn = [*orders[k % len(orders) :], *orders[: k % len(orders)]]
        found.append({order: _one(order, step, asked, world) for order in turn})
    return {"rounds": found}


def _one(order: str, step: Any, asked: dict[str, Any], world: World) -> dict[str, Any]:
    """A lap of all ranks on a fresh iterator, so that nothing was made in the turns of other orders."""
    from lms3d.experiments.feeding import loop

    batches = iter(_dataset(order, asked, world))
    loop.lap(batches, step, LEAD_STEPS)
    world.wait()
    lap = loop.lap(batches, step, asked["steps"])
    return together(world.everyone(lap), asked["batch_size"])


def together(laps: list[Any], batch_size: int) -> dict[str, Any]:
    """The sums and means over the laps of all ranks."""
    waiting = [lap.waited_seconds / lap.seconds for lap in laps]
    return {
        "images_per_second": sum(lap.steps * batch_size / lap.seconds for lap in laps),
        "waiting": sum(waiting) / len(waiting),
        "waiting_most": max(waiting),
        "cores": sum(lap.cpu_seconds / lap.seconds for lap in laps),
    }


def _dataset(order: str, asked: dict[str, Any], world: World) -> Any:
    from lms3d.experiments.feeding import orders
    from lms3d.experiments.feeding.images import training_part

    part = training_part(asked["shards"])
    return orders.ORDERS[order](part, batch_size=asked["batch_size"], seed=0, rank=world.rank, size=world.size)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
