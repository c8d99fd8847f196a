"""Two ranks take a few steps of both tasks' networks, small ones unless tests are thorough. Rank 0 computes the expected weights
by itself."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from lms3d import errors
from lms3d.config import TrainConfig
from lms3d.device import startup
from lms3d.ranks import job
from lms3d.ranks.world import World
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.chexnet.options import ChexnetConfig
from tests.thorough import THOROUGH

RATE, STEPS = 0.05, 2
BRATS = BratsConfig(model="isensee2017", resolution=32)  # at 16 one voxel is left to normalise
CHEXNET = ChexnetConfig(model="resnet50", resolution=32, loss="binary_cross_entropy", batch_size=4)


def main() -> None:
    with job.joined() as world:
        startup.start_tensorflow(seed=1, world=world)
        import ranks

        if not THOROUGH:
            import tests.small_networks  # noqa: F401  in the places of the real ones

        volumes, chests = batches(BRATS, world, (32, 32, 32)), batches(CHEXNET, world, ())
        ranks.note(world, brats=compared(world, BRATS, volumes, doubled=True))
        ranks.note(world, chexnet=compared(world, CHEXNET, chests, doubled=False))


def batches(options: TrainConfig, world: World, axes: tuple[int, ...]) -> list[list[tuple[Any, Any]]]:
    """step -> rank -> (image, truth) of a batch: random numbers, the same on all ranks."""
    import numpy as np

    random, side = np.random.default_rng(5), options.resolution
    image, truth = ((side,) * 3 + (4,), (*axes, 3)) if axes else ((side, side, 3), (14,))

    def batch() -> tuple[Any, Any]:
        size = options.batch_size
        return random.normal(size=(size, *image)).astype("f4"), random.integers(0, 2, (size, *truth)).astype("f4")

    return [[batch() for _ in range(world.size)] for _ in range(STEPS)]


def network(options: TrainConfig, world: World) -> Any:
    """The task's own network and loss, without dropout, which no two ranks share. SGD, because Adam
    magnifies rounding in gradients that are otherwise zero, as for biases before a normalisation."""
    import keras

    from lms3d.ranks import gradients as reduction
    from lms3d.tasks import task_of

    keras.utils.set_random_seed(3 + world.rank)  # every rank starts elsewhere: `synchronise` has something to do
    task = task_of(options)
    model = task.network(options, None)
    for layer in model.layers:
        if "Dropout" in type(layer).__name__:
            layer.rate = 0.0
    optimizer = reduction.averaged(keras.optimizers.SGD(RATE), world)
    model.compile(optimizer, loss=task.loss(options, None), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def compared(
    world: World, options: TrainConfig, steps: list[list[tuple[Any, Any]]], *, doubled: bool
) -> dict[str, Any]:
    """(length of the ranks' way in weight space, distance from the expected end).

    doubled: the expected end is that of one rank with the batches of all ranks together. If False, it is that of the mean of each
    batch's own gradients, since the statistics of batch normalisation come from a rank's own samples.
    """
    import numpy as np
    import ranks
    import tensorflow as tf

    from lms3d.keras_step.callback import LMS
    from lms3d.training import trainer
    from lms3d.training.run import Data, Job, TrainingSchedule

    model = network(options, world)
    start = model.get_weights()
    own = [step[world.rank] for step in steps]
    data = tf.data.Dataset.from_tensor_slices(tuple(np.stack(part) for part in zip(*own, strict=True)))
    lms = LMS(enabled=False)  # traces the step at once, in a third of the time that Keras takes
    given = Data(training=lambda first: data, validation=data.take(1))
    schedule = TrainingSchedule(steps_per_epoch=STEPS, epochs=1, batch_size=options.batch_size)
    trainer.train(model, given, schedule, Job(run_dir=ranks.FOLDER / options.task, world=world), [lms])
    lms.close()
    found = {"digest": hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.weights)).hexdigest()}
    if world.is_chief:
        expected = alone(model, options, start, steps, doubled=doubled, found=model.get_weights())
        found.update(expected)
    world.wait()
    return found


def alone(
    model: Any, options: TrainConfig, start: list[Any], steps: list[list[tuple[Any, Any]]], *, doubled: bool,
    found: list[Any],
) -> dict[str, Any]:  # fmt: skip
    """The same by hand, op by op, without lms3d's trainer. For trainable and for other weights (moving statistics): the length of
    the way, and the distance of `found` from its end."""
    import numpy as np
    import tensorflow as tf

    from lms3d.tasks import task_of

    loss = task_of(options).loss(options, None)
    trainable = {id(v) for v in model.trainable_variables}
    others = [v for v in model.weights if id(v) not in trainable]
    model.set_weights(start)
    moving = [[np.asarray(v) for v in others] for _ in steps[0]]  # of each rank
    for step in steps:
        parts = [tuple(np.concatenate(part) for part in zip(*step, strict=True))] if doubled else step
        gradients = []
        for rank, (image, truth) in enumerate(parts):
            for variable, value in zip(others, moving[rank], strict=True):
                variable.assign(value)
            with tf.GradientTape() as tape:
                value = loss(truth, model(image, training=True))
            gradients.append(tape.gradient(value, [v.value for v in model.trainable_variables]))
            moving[rank] = [np.asarray(v) for v in others]
        for variable, *several in zip(model.trainable_variables, *gradients, strict=True):
            variable.assign_sub(RATE * sum(several) / len(several))
    for variable, *several in zip(others, *moving, strict=True):
        variable.assign(np.mean(several, axis=0))
    far = {}
    for name, mine in (("trainable", True), ("moving", False)):
        chosen = [number for number, v in enumerate(model.weights) if (id(v) in trainable) == mine]
        expected = model.get_weights()
        far[name] = {
            "way": norm([expected[n] - start[n] for n in chosen]),
            "missed": norm([expected[n] - found[n] for n in chosen]),
        }
    return far


def norm(arrays: list[Any]) -> float:
    import numpy as np

    return float(np.sqrt(sum(np.sum(np.square(a, dtype=np.float64)) for a in arrays)))


if __name__ == "__main__":
    sys.exit(errors.run(main))
