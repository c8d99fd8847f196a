"""Shared parts of the jobs of this folder: a tiny network, a stream of samples, and a place for results."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms3d.ranks import gradients
from lms3d.ranks.world import World
from lms3d.training import trainer
from lms3d.training.run import Data, Job, TrainingSchedule

FOLDER = Path(sys.argv[1])
STEPS = 4
SWAP_ALL = {"tier": "host", "swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}

_noted: dict[str, Any] = {}


def note(world: World, /, **values: Any) -> None:
    """Writes results down for the test."""
    _noted.update(values)
    (FOLDER / f"rank{world.rank}.json").write_text(json.dumps(_noted))


def make_model(
    world: World, *, optimizer: Any = None, dropout: float = 0.0, normalised: bool = False, compression: str = "none"
) -> keras.Model:
    """A network of one hidden layer on 6^3 voxels, whose gradients are averaged over the world."""
    keras.utils.set_random_seed(3 + world.rank)  # every rank starts elsewhere: `synchronise` has something to do
    inputs = keras.Input((6, 6, 6, 2))
    x = keras.layers.Conv3D(4, 3, padding="same", activation="relu")(inputs)
    x = keras.layers.BatchNormalization()(x) if normalised else x
    x = keras.layers.SpatialDropout3D(dropout)(x) if dropout else x
    model = keras.Model(inputs, keras.layers.Conv3D(1, 1)(x))
    optimizer = gradients.averaged(optimizer or keras.optimizers.Adam(1e-2), world, compression)
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def sample(number: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(number)
    return random.random((6, 6, 6, 2), np.float32), random.random((6, 6, 6, 1), np.float32)


def batch(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    images, targets = zip(*(sample(int(number)) for number in numbers), strict=True)
    return np.stack(images), np.stack(targets)


def dataset(numbers: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    def load(group: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x, y = tf.numpy_function(batch, [group], (tf.float32, tf.float32))
        return tf.ensure_shape(x, (batch_size, 6, 6, 6, 2)), tf.ensure_shape(y, (batch_size, 6, 6, 6, 1))

    return numbers.batch(batch_size, drop_remainder=True).map(load)


def train(
    world: World,
    model: keras.Model,
    run_dir: Path,
    *callbacks: Any,
    batch_size: int = 1,
    resume: bool = False,
    record_bits: Path | None = None,
    **options: Any,
) -> Any:
    """`trainer.train` on the endless stream of samples 0, 1, 2, ... dealt out over the ranks; five validation samples."""
    share = world.share(range(900, 905))

    def stream(first_sample: int) -> tf.data.Dataset:
        return dataset(tf.data.Dataset.range(first_sample + world.rank, 10**6, world.size), batch_size)

    validation = dataset(tf.data.Dataset.from_tensor_slices(share), 1)
    data = Data(training=stream, validation=validation, validation_weight=len(share))
    schedule = TrainingSchedule(
        batch_size=batch_size, validation_steps=world.validation_steps(5, 1),
        **{"steps_per_epoch": STEPS, "epochs": 2, **options},
    )  # fmt: skip
    where = Job(run_dir=run_dir, world=world, resume=resume, record_bits=record_bits)
    return trainer.train(model, data, schedule, where, callbacks)


def values(model: keras.Model) -> list[list[float]]:
    """All weights and optimiser variables, as numbers that JSON keeps exactly."""
    return [np.asarray(v, np.float64).ravel().tolist() for v in [*model.weights, *model.optimizer.variables]]


def without_seconds(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


class Slip(keras.callbacks.Callback):
    """After the second step the weights of one rank change a little, as on a processor that fails."""

    def __init__(self, world: World, rank: int) -> None:
        super().__init__()
        self.mine = world.rank == rank

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.mine and batch == 1:
            kernel = self.model.trainable_variables[0]
            kernel.assign(np.asarray(kernel) * np.float32(1 + 1e-6))


class CtrlC(keras.callbacks.Callback):
    """SIGINT to one rank, at an (epoch, step) of training or a validation step of an epoch."""

    def __init__(self, world: World, rank: int, epoch: int, step: int, hook: str = "train") -> None:
        super().__init__()
        self.mine, self.where, self.hook, self.epoch = world.rank == rank, (epoch, step), hook, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._fire("train", batch)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._fire("test", batch)

    def _fire(self, hook: str, batch: int) -> None:
        if self.mine and hook == self.hook and (self.epoch, batch) == self.where:
            os.kill(os.getpid(), signal.SIGINT)
