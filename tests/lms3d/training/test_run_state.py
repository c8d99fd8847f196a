"""The state of a run as a value: on disk and back, on another number of ranks, and what each rank has for itself."""

import json
import math

import keras
import numpy as np
import pytest

from lms3d.errors import InputError
from lms3d.ranks import messages, replicas, variables
from lms3d.ranks.world import World
from lms3d.training import checkpoint, run_state
from lms3d.training.run_state import Position, RunSnapshot, RunState

STATE = RunState(
    size=2, steps_per_epoch=4, samples_per_step=2, position=Position(1, 3), samples=14,
    rows=({"epoch": 1.0, "loss": 0.5},), seconds=2.5, best_loss=0.25, best="abc",
    callbacks={"plateau": {"best": math.inf, "wait": 2}, "early_stopping": {"stopped_epoch": 0}},
    slabs={"train (1, 32, 32, 32, 4)": "8/4"},
)  # fmt: skip
ARRAYS = {"model/0000/kernel": np.arange(3.0), "optimizer/0000/iteration": np.array(7)}


def test_what_is_written_is_read(tmp_path):
    own = tuple({"logs/loss": np.array(0.5 + rank), "own/0001": np.zeros(2)} for rank in (0, 1))
    RunSnapshot(state=STATE, variables=ARRAYS, of_ranks=own).write(tmp_path)
    found, damage = run_state.read(tmp_path)
    assert (found.state, damage) == (STATE, "")
    for mine, theirs in zip((found.variables, *found.of_ranks), (ARRAYS, *own), strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])


def test_there_may_be_none(tmp_path):
    assert run_state.read(tmp_path) is None


def test_the_form_on_disk_is_that_of_earlier_versions(tmp_path):
    """Runs go on across versions: names may be added, and none may change."""
    RunSnapshot(state=STATE, variables=ARRAYS).write(tmp_path)
    arrays, content = checkpoint.load(checkpoint.path_in(tmp_path))
    assert arrays.keys() == ARRAYS.keys()
    assert content == {
        "position": [1, 3], "samples": 14, "size": 2, "steps_per_epoch": 4, "samples_per_step": 2,
        "rows": [{"epoch": 1.0, "loss": 0.5}], "best_loss": 0.25, "best": "abc", "seconds": 2.5,
        "callbacks": {"plateau": {"best": math.inf, "wait": 2}, "early_stopping": {"stopped_epoch": 0}},
        "stopped_early": False, "slabs": {"train (1, 32, 32, 32, 4)": "8/4"},
    }  # fmt: skip


def test_states_of_earlier_versions():
    content = json.loads(json.dumps(STATE.to_json()))
    assert RunState.from_json({**content, "of a later version": 1}, "file") == STATE
    del content["best"]
    assert RunState.from_json(content, "file").best == ""
    del content["samples_per_step"]
    with pytest.raises(InputError, match=r"file is of a version .* too early; .*another --output"):
        RunState.from_json(content, "file")


def test_it_can_be_sent_to_other_ranks():
    assert messages.unpacked(messages.packed(STATE)) == STATE


@pytest.mark.parametrize(
    ("step", "samples_per_step", "steps_per_epoch", "expected"),
    [(3, 2, 4, 3), (3, 1, 8, 6), (1, 4, 2, 0), (3, 4, 2, 2), (4, 4, 2, 2), (4, 2, 9, 9), (3, 2, 2, 2)],
    ids=[
        "the same",
        "fewer ranks",
        "rounded",
        "more ranks",
        "the last",
        "the last of a longer epoch",
        "a shorter epoch",
    ],
)
def test_the_step_on_another_number_of_ranks(step, samples_per_step, steps_per_epoch, expected):
    before = run_state.replace(STATE, position=Position(1, step))
    after = before.rescaled(size=9, steps_per_epoch=steps_per_epoch, samples_per_step=samples_per_step)
    assert after.position == Position(1, expected)
    assert (after.size, after.samples) == (9, 14)


def test_whether_early_stopping_ended_it():
    assert not STATE.stopped_early
    assert run_state.replace(STATE, callbacks={"early_stopping": {"stopped_epoch": 3}}).stopped_early
    assert not STATE.out_of_time
    assert run_state.replace(STATE, callbacks={"time_guard": {"reached": True}}).out_of_time


def test_a_copy_keeps_what_was():
    weights = np.zeros(3)
    snapshot = RunSnapshot(state=STATE, variables={"w": weights}, of_ranks=({"own": weights},)).copied()
    weights += 1
    assert snapshot.variables["w"].tolist() == snapshot.of_ranks[0]["own"].tolist() == [0, 0, 0]


@pytest.fixture
def model():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.BatchNormalization()(keras.layers.Dense(1)(inputs)))
    model.compile("sgd", "mse", metrics=["mae"], jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    model.train_on_batch(np.ones((1, 2)), np.ones((1, 1)))
    return model


@pytest.mark.parametrize(
    ("step", "size", "expected"), [(3, 1, "logs metrics"), (3, 2, "logs metrics own"), (4, 1, "logs")]
)
def test_what_a_rank_has_for_itself(model, step, size, expected):
    """Sums of metrics while they grow; moving statistics if there are several ranks."""
    state = run_state.replace(STATE, position=Position(0, step))
    own = run_state.own_arrays(model, state, {"loss": 0.5}, World(size=size))
    assert sorted({name.split("/")[0] for name in own}) == expected.split()


def test_variables_are_set_by_position_and_shape(model):
    named = variables.variables(model)
    arrays = {name.replace("dense", "renamed"): array + 1 for name, array in variables.read(named).items()}
    variables.assign(named, arrays, "file")
    for name, array in variables.read(named).items():
        np.testing.assert_array_equal(array, arrays[name.replace("dense", "renamed")])
    first = next(name for name in arrays if name.startswith("model/0000"))
    with pytest.raises(InputError, match=r"file: .* has shape 5, .* another model"):
        variables.assign(named, {**arrays, first: np.zeros(5)}, "file")
    with pytest.raises(InputError, match=r"file has \d+ variables, this model \d+; it belongs to another model"):
        variables.assign(named, {first: arrays[first]}, "file")


def test_the_first_variable_that_is_not_finite(model):
    assert variables.not_finite(variables.variables(model)) == ""
    model.trainable_variables[0].assign(np.full((2, 1), np.nan))
    assert variables.not_finite(variables.variables(model)).startswith("model/0000/")


def test_states_of_ranks_on_another_number_of_ranks():
    """Their mean, for numbers that have one; seeds have none."""
    states = [{"own/a": np.array([float(rank)]), "own/seed": np.array([rank])} for rank in range(3)]
    assert replicas.of_rank(states, World(rank=1, size=3)) == states[1]
    (only,) = replicas.of_rank(states, World()).items()
    assert only == ("own/a", np.array([1.0]))
    assert replicas.of_rank([], World()) == {}
