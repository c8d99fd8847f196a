"""One rank of an elastic job that test_elastic starts: a tiny model on random numbers. Arguments: RUN_DIR EPOCHS LOG_DIR.

Each rank writes one line per step into LOG_DIR: process, rank, size, epoch, step, learning rate.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from lms3d import errors
from lms3d.ranks import elastic
from lms3d.ranks.world import World

SAMPLES, BATCH = 24, 2
STEP_SECONDS = 0.05


def train_once(world: World, memory: elastic.Memory) -> None:
    import keras
    import tensorflow as tf

    from lms3d.device import startup
    from lms3d.ranks import gradients
    from lms3d.training import trainer
    from lms3d.training.run import Data, Job, TrainingSchedule

    startup.start_tensorflow(seed=1, world=world, elastic_restart=memory.resuming)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.1)(inputs)))
    adam = keras.optimizers.Adam(world.learning_rate(1e-3))
    model.compile(optimizer=gradients.averaged(adam, world), loss="mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)

    def sample(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.random.stateless_uniform((4,), (number, 7))
        return x, tf.reduce_sum(x, keepdims=True)

    def training(first: int) -> Any:
        numbers = tf.data.Dataset.range(first + world.rank, 10**9, world.size)
        return numbers.map(sample).batch(BATCH, drop_remainder=True)

    epochs, steps = int(sys.argv[2]), world.training_steps(SAMPLES, BATCH)
    data = Data(training=training, validation=tf.data.Dataset.range(4).map(sample).batch(BATCH))
    schedule = TrainingSchedule(steps_per_epoch=steps, epochs=epochs, batch_size=BATCH)
    job = Job(run_dir=Path(sys.argv[1]), world=world, memory=memory)
    trainer.train(model, data, schedule, job, [Log(world, steps)])


def Log(world: World, steps: int) -> Any:
    import keras
    import numpy as np

    file = (Path(sys.argv[3]) / f"{os.getpid()}.log").open("a", buffering=1)

    class Lines(keras.callbacks.Callback):
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rate = float(np.asarray(self.model.optimizer.learning_rate))
            file.write(f"{os.environ['HOROVOD_HOSTNAME']} {world.rank} {world.size} {self.epoch} {steps} {rate:.6f}\n")
            time.sleep(STEP_SECONDS)

    return Lines()


if __name__ == "__main__":
    sys.exit(errors.run(lambda: elastic.run(train_once)))
