"""Two ranks whose link is TensorFlow's: messages, gradients in several pieces, trainings, and an error of all ranks at the end."""

from __future__ import annotations

import sys
from typing import Any

from lms3d import errors
from lms3d.device import startup
from lms3d.errors import InputError
from lms3d.ranks import job
from lms3d.ranks.world import World


def tensors(rank: int) -> list[Any]:
    """Gradients of one rank: four that share pieces of 256 bytes, and one that is larger than a piece."""
    import numpy as np

    random = np.random.default_rng(rank)
    return [random.standard_normal(shape, np.float32) for shape in ((5, 5), (7,), (30,), (2, 3), (100,))]


def pieces(world: World) -> None:
    """Means over the ranks by one traced function: as they are, in half precision, and with a shape that is unknown."""
    import numpy as np
    import ranks
    import tensorflow as tf

    from lms3d.engine.tensorflow.capture import capture
    from lms3d.ranks import collectives

    collectives.BUCKET_BYTES, usual = 256, collectives.BUCKET_BYTES
    mine, expected = tensors(world.rank), [np.mean(pair, 0) for pair in zip(tensors(0), tensors(1), strict=True)]
    for compression in ("none", "fp16"):
        averaged = tf.function(lambda *given, how=compression: world.linked.average(given, how, "pieces"))
        means = averaged(*mine)
        wrong = max(float(np.abs(mean - right).max()) for mean, right in zip(means, expected, strict=True))
        function = averaged.get_concrete_function(*mine)
        stateful = [op.stateful for op in capture(function).ops if op.type == "CollectiveReduceV2"]
        bits = b"".join(mean.numpy().tobytes() for mean in means).hex()
        ranks.note(world, **{f"pieces_{compression}": [wrong, bits, stateful]})
    open_shape = tf.function(
        lambda given: world.linked.average([given], "none", "open"), input_signature=[tf.TensorSpec([None])]
    )
    ranks.note(world, open_shape=open_shape(tf.fill([3], float(world.rank)))[0].numpy().tolist())
    collectives.BUCKET_BYTES = usual


def main() -> None:
    with job.joined("tensorflow") as world:
        early = [world.from_chief(lambda: [world.rank, "x" * 200_000])[0], world.smallest(10 - world.rank)]
        startup.start_tensorflow(limit_bytes=400 << 20, seed=1, world=world)
        import job_training
        import job_world
        import ranks
        import tensorflow as tf

        from lms3d.device import memory

        devices = [device.name for device in tf.config.list_logical_devices()]
        ranks.note(
            world, early=early, world=[world.rank, world.size, world.local_rank, world.local_size], devices=devices,
            limit=memory.current_limit(), kind=type(world.link).__name__,
        )  # fmt: skip
        job_world.compute(world, lambda **found: ranks.note(world, **found))
        pieces(world)
        job_training.equivalence(world, ("adam",))
        job_training.lms(world)
        world.from_chief(lambda: job_world.fail(InputError("no such folder")))


if __name__ == "__main__":
    sys.exit(errors.run(main))
