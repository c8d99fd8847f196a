"""Copies of one model on two ranks, which run in this process one after the other. Messages of rank 0 are kept for rank 1."""

import keras
import numpy as np
import pytest

from lms3d.ranks import replicas, variables
from lms3d.ranks.world import World


class Recorded:
    """A link in which rank 0 sends first, and rank 1 receives afterwards."""

    def __init__(self):
        self.sent, self.flags, self.first_reductions = [], [], []

    def world(self, rank):
        self.heard = iter(list(self.sent))
        return World(rank=rank, size=2, link=self)

    def broadcast(self, message):
        if message:
            self.sent.append(message)
            return message
        return next(self.heard)

    def gather(self, values):
        return np.array([values, values])

    def mean(self, values):
        return (values + 3) / 2

    def average(self, tensors, compression, name):
        self.first_reductions.append(name)


class FromChief(Recorded):
    """As `Recorded`, for rank 1: a message of variables is not empty on any rank, and that of rank 0 counts."""

    def __init__(self, sent):
        super().__init__()
        self.sent = sent

    def broadcast(self, message):
        return next(self.heard)


def make_model(seed, units=2):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((3,))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(units)(inputs))
    model = keras.Model(inputs, keras.layers.Dropout(0.5)(x))
    model.compile(keras.optimizers.Adam(1e-3 * (seed + 1)), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def both():
    """The models of ranks 0 and 1, made equal, and their links."""
    chief, other = make_model(0), make_model(1)
    link = Recorded()
    replicas.synchronise(chief, link.world(0))
    second = FromChief(link.sent)
    replicas.synchronise(other, second.world(1))
    return chief, other, (link, second)


def test_all_variables_become_those_of_rank_0_but_random_states(both):
    chief, other, links = both
    mine, theirs = (variables.read(variables.variables(model)) for model in (chief, other))
    differ = [a for a, b in zip(mine, theirs, strict=True) if not np.array_equal(mine[a], theirs[b])]
    (seed,) = differ
    assert seed.endswith("seed_generator_state")
    assert float(np.asarray(other.optimizer.learning_rate)) == pytest.approx(1e-3)
    assert [link.first_reductions for link in links] == [["first"], ["first"]]  # the buffer is there before planning


def test_ranks_with_different_models_are_told():
    link = Recorded()
    replicas.synchronise(make_model(0), link.world(0))
    with pytest.raises(RuntimeError, match="rank 1 of 2: the ranks have built different models"):
        replicas.synchronise(make_model(0, units=5), FromChief(link.sent).world(1))


def test_moving_statistics_become_the_mean_and_weights_stay(both):
    chief, _, (link, _) = both
    before = [np.asarray(v).copy() for v in chief.trainable_variables]
    replicas.average_statistics(chief, link.world(0))
    moving = [np.asarray(v) for v in chief.non_trainable_variables if v.name.startswith("moving")]
    assert [values.tolist() for values in moving] == [[1.5, 1.5], [2.0, 2.0]]  # of 0 and 3, of 1 and 3
    for values, variable in zip(before, chief.trainable_variables, strict=True):
        np.testing.assert_array_equal(values, np.asarray(variable))


def test_states_of_all_ranks_in_one_file():
    states = ({"own/0001": np.array([1.0])}, {"own/0001": np.array([2.0]), "logs/loss": np.array(0.5)})
    together = replicas.joined(states)
    assert sorted(together) == ["ranks/0000/own/0001", "ranks/0001/logs/loss", "ranks/0001/own/0001"]
    assert replicas.split({**together, "model/0000/kernel": np.zeros(2)}) == states
    assert replicas.split({"model/0000/kernel": np.zeros(2)}) == ()
