"""Training steps with a clock at both ends of the wait for data.

next(iterator)      waiting: the device has nothing to do, since the step before has ended
step                computing and averaging gradients; ends when the last weights are written
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from lms3d import models
from lms3d.ranks import gradients, replicas
from lms3d.ranks.messages import sendable
from lms3d.ranks.world import World
from lms3d.scoring import findings


@sendable
@dataclass(frozen=True, kw_only=True)
class Lap:
    """Some steps of this rank."""

    steps: int
    seconds: float
    """Seconds from the end of one step to the end of the last."""
    waited_seconds: float
    """Seconds in next(iterator)."""
    cpu_seconds: float
    """Processor seconds of all threads of this process."""


def network(name: str, resolution: int, world: World) -> keras.Model:
    """The network, compiled for 14 findings as `lms3d.train --task chexnet` does, with the same weights on all ranks."""
    model = models.build(name, input_shape=(resolution, resolution, 3))
    optimizer = gradients.averaged(keras.optimizers.Adam(world.learning_rate(1e-3)), world)
    model.compile(optimizer, loss=findings.binary_cross_entropy, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    replicas.synchronise(model, world)
    return model


def stepper(model: keras.Model) -> Callable[[Any], None]:
    """batch -> one training step, done when this returns."""
    train = tf.function(model.train_step, jit_compile=False)
    written_last = model.trainable_variables[0]  # the backward pass comes to the first layer last

    def step(batch: Any) -> None:
        train(batch)
        written_last.numpy()  # a GPU runs behind: wait for it

    return step


def lap(batches: Iterator[Any], step: Callable[[Any], None], steps: int) -> Lap:
    """Takes so many steps, and times them."""
    waited, cpu, started = 0.0, time.process_time(), time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        step(batch)
    seconds = time.perf_counter() - started
    return Lap(steps=steps, seconds=seconds, waited_seconds=waited, cpu_seconds=time.process_time() - cpu)
