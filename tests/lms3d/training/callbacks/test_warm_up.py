"""The rate of the first epochs."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from lms3d.ranks.world import World
from lms3d.training.callbacks.warm_up import WarmUp
from lms3d.training.run import TrainingSchedule
from lms3d.training.run_state import Position


class Steps:
    """Steps of a run of which only the learning rate is seen."""

    def __init__(self, size=4, epochs=2, steps=5):
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        self.model.compile(keras.optimizers.SGD(0.4))
        schedule = TrainingSchedule(epochs=9, steps_per_epoch=steps, warmup_epochs=epochs)
        self.run = SimpleNamespace(schedule=schedule, world=World(size=size), full_rate=0.4)
        self.callback = WarmUp(self.run)
        self.callback.set_model(self.model)

    def at(self, epoch, step):
        self.run.state = SimpleNamespace(position=Position(epoch, step))

    def rate(self, epoch, step):
        self.at(epoch, step)
        self.callback.on_train_batch_begin(step)
        return float(np.asarray(self.model.optimizer.learning_rate))


def test_from_the_rate_of_one_rank_to_that_of_all():
    run = Steps()
    rates = [run.rate(epoch, step) for epoch in range(3) for step in range(5)]
    np.testing.assert_allclose(rates[:11], np.linspace(0.1, 0.4, 11), rtol=1e-6)
    np.testing.assert_allclose(rates[10:], 0.4, rtol=1e-6)


def test_a_resumed_run_takes_the_same_rates():
    straight, resumed = Steps(), Steps()
    expected = [straight.rate(*place) for place in [(0, 4), (1, 2), (1, 3)]]
    assert [resumed.rate(1, 2), resumed.rate(1, 3)] == expected[1:]


def test_what_a_plateau_takes_away_stays_away():
    run = Steps()
    run.rate(0, 4)
    run.model.optimizer.learning_rate = 0.5 * np.asarray(run.model.optimizer.learning_rate)
    run.callback.on_epoch_end(0)
    assert run.callback.cut == pytest.approx(0.5)
    assert run.rate(2, 0) == pytest.approx(0.2)
    run.model.optimizer.learning_rate = 0.05  # after the warm-up nothing is set any more
    assert run.rate(2, 1) == pytest.approx(0.05)


def test_without_warm_up_the_rate_is_left_alone():
    run = Steps(epochs=0)
    run.model.optimizer.learning_rate = 0.123
    assert run.rate(0, 0) == pytest.approx(0.123)


def test_alone_nothing_grows_but_a_run_from_several_ranks_finds_its_rate():
    run = Steps(size=1)
    run.model.optimizer.learning_rate = 0.123  # scaled from the midst of a warm-up
    assert run.rate(0, 3) == pytest.approx(0.4)


def test_alone_what_a_plateau_takes_away_is_known_to_more_ranks():
    run = Steps(size=1)
    run.rate(0, 4)
    run.model.optimizer.learning_rate = 0.04
    run.callback.on_epoch_end(0)
    assert run.callback.cut == pytest.approx(0.1)


def test_an_epoch_whose_end_alone_is_due_keeps_what_the_plateau_takes_away():
    run = Steps()
    run.at(0, 5)
    run.model.optimizer.learning_rate = run.callback.rate_at(4)
    run.callback.on_train_begin()
    run.model.optimizer.learning_rate = 0.5 * run.callback.rate_at(4)
    run.callback.on_epoch_end(0)
    assert run.rate(1, 0) == pytest.approx(0.5 * run.callback.rate_at(5))


@pytest.mark.parametrize("size", [1, 4])
def test_a_schedule_sets_the_rate_that_is_warmed_up(size):
    """It halves the rate when an epoch begins, before the first step of the warm-up and in the midst of it."""
    run = Steps(size=size)
    run.at(0, 0)
    run.callback.on_train_begin()
    for epoch in range(3):
        run.at(epoch, 0)
        run.model.optimizer.learning_rate = 0.5 * np.asarray(run.model.optimizer.learning_rate)
        rates = [run.rate(epoch, step) for step in range(5)]
        if epoch < 2:  # then the warm-up is over
            np.testing.assert_allclose(
                rates, [0.5 ** (epoch + 1) * run.callback.rate_at(5 * epoch + k) for k in range(5)]
            )
        else:
            np.testing.assert_allclose(rates[1:], rates[:-1])
        run.callback.on_epoch_end(epoch)
