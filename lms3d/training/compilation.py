"""From options to a network that is ready to train: built, compiled, and its gradients averaged over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lms3d.config import TrainConfig
from lms3d.ranks.world import World
from lms3d.tasks import task_of

if TYPE_CHECKING:
    import keras


def compiled_model(options: TrainConfig, *, material: Any = None, world: World | None = None) -> keras.Model:
    """The network of the options, compiled, with its optimiser's slots in place.

    material: of the task; None where only the cost of a step matters. world: whose gradients are averaged.
    """
    task, world = task_of(options), world or World()
    model = task.network(options)
    model.compile(
        optimizer=_optimizer(options, world),
        loss=task.loss(options, material),
        metrics=task.metrics(options, material),
        jit_compile=False,  # XLA decides on memory by itself: there would be nothing left to plan
    )
    model.optimizer.build(model.trainable_variables)
    return model


def _optimizer(options: TrainConfig, world: World) -> keras.optimizers.Optimizer:
    """Adam at the rate of the whole world's batch."""
    import keras

    from lms3d.ranks import gradients

    optimizer = keras.optimizers.Adam(world.learning_rate(options.learning_rate))
    return gradients.averaged(optimizer, world, options.gradient_compression)
