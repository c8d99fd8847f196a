"""From options to a network that is ready to train: built, compiled, and its gradients averaged over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lms3d.config import TrainConfig
from lms3d.ranks import gradients
from lms3d.ranks.world import World
from lms3d.training.task import Task

if TYPE_CHECKING:
    import keras


def compiled_model(
    options: TrainConfig, task: Task, *, material: Any = None, world: World | None = None
) -> keras.Model:
    """The network of the options, compiled with Adam at the learning rate of the whole world's batch; its slots are built.

    material: what the task's `prepare` returned; None if only the cost of a step matters. world: the ranks that average gradients.
    """
    from lms3d.training.adam import AveragingAdam

    world = world or World()
    model = task.network(options, material)
    adam = AveragingAdam(
        world.learning_rate(options.learning_rate),
        gradient_accumulation_steps=options.accumulate if options.accumulate > 1 else None,
        use_ema=options.ema is not None, ema_momentum=_momentum(options),
    )  # fmt: skip
    model.compile(
        optimizer=gradients.averaged(adam, world, options.gradient_compression),
        loss=task.loss(options, material),
        metrics=task.metrics(options, material),
        jit_compile=False,  # XLA plans memory by itself: nothing would be left to swap
    )
    model.optimizer.build(model.trainable_variables)
    return model


def _momentum(options: TrainConfig) -> float:
    """The momentum of the moving average per step: Keras averages in each step, while --ema counts changes of the weights."""
    return options.ema ** (1 / options.accumulate) if options.ema is not None else 0.0
