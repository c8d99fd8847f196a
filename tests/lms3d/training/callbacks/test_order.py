"""The order of callbacks, and one that somebody adds: in its place, and with its state after a resume."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.training import trainer
from lms3d.training.callbacks import order
from lms3d.training.callbacks.order import CALLBACKS, Place, TrainingCallback
from lms3d.training.run import Data, Job, TrainingSchedule


def train(run_dir, *given, epochs, resume=False):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    batch = tf.data.Dataset.from_tensors((np.ones((1, 2), np.float32), np.ones((1, 1), np.float32)))
    data = Data(training=lambda first: batch.repeat(), validation=batch)
    schedule = TrainingSchedule(epochs=epochs, steps_per_epoch=2)
    return trainer.train(model, data, schedule, Job(run_dir=run_dir, resume=resume), given)


@pytest.fixture
def toy():
    """All that it takes to add a callback: a class, and its registration."""

    @CALLBACKS.register("toy")
    class Toy(TrainingCallback):
        place, name, kept = Place.PLATEAU, "toy", ("losses",)

        def __init__(self, run: Any) -> None:
            super().__init__(run)
            self.losses: list[float] = []

        def on_train_begin(self, logs: Any = None) -> None:
            self.losses = []

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.losses.append(logs["loss"])
            logs["toy"] = float(len(self.losses))

    yield Toy
    CALLBACKS.remove("toy")


def test_a_new_callback_acts_at_its_place_and_survives_a_resume(tmp_path, toy):
    train(tmp_path, epochs=2)
    history = train(tmp_path, epochs=3, resume=True)
    assert [row["toy"] for row in history.rows] == [1, 2, 3]  # before HISTORY; the third epoch knows of the first two


def test_a_run_goes_on_where_a_callback_is_new_or_gone(tmp_path, toy):
    CALLBACKS.remove("toy")
    train(tmp_path, epochs=1)
    CALLBACKS.register("toy")(toy)
    assert [row.get("toy") for row in train(tmp_path, epochs=2, resume=True).rows] == [None, 1]
    CALLBACKS.remove("toy")
    assert len(train(tmp_path, epochs=3, resume=True).rows) == 3
    CALLBACKS.register("toy")(toy)


def test_given_callbacks_stand_where_they_say(tmp_path):
    seen = []

    class Watch(keras.callbacks.Callback):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def on_epoch_begin(self, epoch, logs=None):
            seen.append(self.name)

    plain, second = Watch("plain"), Watch("second")
    last, first = order.with_place(Place.PROGRESS, Watch("progress")), order.with_place(Place.LMS, Watch("lms"))
    train(tmp_path, last, plain, second, first, epochs=1)
    assert seen == ["lms", "plain", "second", "progress"]


def test_every_place_of_a_run_is_taken_once():
    """Two callbacks at one place would stand in the order of their registration, for no reason that anybody stated."""
    places = [CALLBACKS[name].place for name in CALLBACKS.names]
    assert len(set(places)) == len(places)
    assert max(Place) == CALLBACKS["checkpoint"].place
    named = [CALLBACKS[name].name for name in CALLBACKS.names if CALLBACKS[name].kept]
    assert all(named)
    assert len(set(named)) == len(named)


def test_what_is_kept_has_a_name():
    with pytest.raises(TypeError, match="Nameless keeps losses over a resume"):

        class Nameless(TrainingCallback):
            kept = ("losses",)
