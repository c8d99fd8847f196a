"""Each rank reports the launcher that it sees, its place, the GPU that it would take of four, and the cores that it may use.
Arguments: FOLDER [BACKEND]."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

from lms3d import errors
from lms3d.device import machine, startup
from lms3d.errors import DoesNotFit
from lms3d.ranks import job
from lms3d.ranks.world import World


def gpu_of(world: World) -> list[str]:
    """The GPUs that `start_tensorflow` would show TensorFlow on a machine with four."""
    shown: list[str] = []
    gpus = ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    config = SimpleNamespace(
        list_physical_devices=lambda kind: gpus, set_visible_devices=lambda gpu, kind: shown.append(gpu)
    )
    startup._pin_gpu(SimpleNamespace(config=config), world)
    return shown


def early_error(world: World) -> list[Any]:
    def fail() -> None:
        raise DoesNotFit("too large", 123)

    try:
        world.from_chief(fail)
    except DoesNotFit as found:
        return [str(found), found.smallest_limit_bytes]
    return []


def main() -> None:
    with job.joined(*sys.argv[2:]) as world:
        early = world.from_chief(lambda: {"rank": world.rank, "text": "x" * 200_000})
        noted = {"early": [early["rank"], len(early["text"])], "error": early_error(world)}
        noted["fewest"] = world.smallest(10 - world.rank)
        startup.start_tensorflow(limit_bytes=400 << 20, seed=1, world=world)
        import ranks

        from lms3d.device import memory

        launcher, processes = machine.launched(os.environ)
        ranks.note(
            world, **noted, world=[world.rank, world.size, world.local_rank, world.local_size], gpu=gpu_of(world),
            cores=sorted(os.sched_getaffinity(0)), launcher=launcher, processes=processes, limit=memory.current_limit(),
            everyone=world.everyone(world.rank), mean=world.mean({"rank": world.rank}),
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(errors.run(main))
