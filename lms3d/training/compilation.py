"""From options to a network that is ready to train: built, compiled, and its gradients averaged over the ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lms3d.config import TrainConfig
from lms3d.device import memory
from lms3d.errors import DoesNotFit
from lms3d.ranks import gradients
from lms3d.ranks.world import World
from lms3d.training.task import Task
from lms3d.units import format_size

if TYPE_CHECKING:
    import keras

_SMALL_BYTES = 1 << 20
"""For constants and counters. Chosen, not measured."""


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
    _require_room(model, copies=2 + (options.ema is not None) + (options.accumulate > 1))
    model.optimizer.build(model.trainable_variables)
    return model


def _require_room(model: keras.Model, copies: int) -> None:
    """DoesNotFit if a hard limit leaves no room for so many copies of the weights, which the optimizer is about to make.

    TensorFlow 2.21 would say so for a large variable. But if the pool of a processor is full when Python makes a small tensor, the
    process ends with a segmentation fault.
    """
    limit_bytes, used_bytes = memory.current_limit(), memory.bytes_in_use("current")
    weights = model.trainable_variables
    needed_bytes = copies * sum(math.prod(weight.shape) * np.dtype(weight.dtype).itemsize for weight in weights)
    if limit_bytes is not None and used_bytes is not None and used_bytes + needed_bytes + _SMALL_BYTES > limit_bytes:
        raise DoesNotFit(
            f"{model.name} does not fit into {format_size(limit_bytes)}: its weights and the optimizer's copies of them alone take "
            f"{format_size(used_bytes + needed_bytes)}; raise --memory-limit or choose a smaller network"
        )


def _momentum(options: TrainConfig) -> float:
    """The momentum of the moving average per step: Keras averages in each step, while --ema counts changes of the weights."""
    return options.ema ** (1 / options.accumulate) if options.ema is not None else 0.0
