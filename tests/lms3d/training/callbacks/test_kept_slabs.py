"""The slabs of a run: saved with it, given back to LMS, and the same on all ranks."""

from types import SimpleNamespace

import keras
import pytest

from lms3d.errors import InputError, is_of_all_ranks
from lms3d.keras_step.callback import LMS
from lms3d.ranks import messages
from lms3d.ranks.world import World
from lms3d.training.callbacks.kept_slabs import KeptSlabs
from lms3d.training.run import Data, Job, TrainingRun, TrainingSchedule
from lms3d.training.run_state import RunState

TRAIN = "train (1, 32, 32, 32, 4) (1, 32, 32, 32, 3)"


class Planned(LMS):
    """An LMS whose training step has slabs."""

    given, planned = None, "8/4"

    @property
    def kept_slabs(self):
        return {TRAIN: self.planned}

    def keep_slabs(self, kept):
        self.given = dict(kept)


class OtherRank:
    """A link of two ranks of which the other one has cut its step as it says."""

    def __init__(self, slabs: str) -> None:
        self.slabs = slabs

    def gather_bytes(self, message):
        return [message, messages.packed({TRAIN: self.slabs})]

    def gather(self, values):
        return [values, values]


def run_of(world: World, tmp_path) -> tuple[TrainingRun, KeptSlabs, Planned]:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    data, schedule = Data(training=lambda first: None, validation=None), TrainingSchedule(epochs=1, steps_per_epoch=4)
    run = TrainingRun(model, data, schedule, Job(run_dir=tmp_path, world=world), SimpleNamespace(asked=False))
    callback, lms = KeptSlabs(run), Planned()
    run.callbacks = [lms, callback]
    return run, callback, lms


def test_what_was_planned_is_saved_and_given_back(tmp_path):
    run, callback, lms = run_of(World(), tmp_path)
    callback.on_train_begin()
    assert lms.given is None
    callback.on_train_batch_end(0)
    assert run.state.slabs == {TRAIN: "8/4"}
    state = RunState.from_json(run.state.to_json(), "here")
    resumed, later, other = run_of(World(), tmp_path)
    resumed.state = state
    later.on_train_begin()
    assert other.given == {TRAIN: "8/4"}


def test_a_checkpoint_from_before_there_were_slabs(tmp_path):
    content = run_of(World(), tmp_path)[0].state.to_json()
    del content["slabs"]
    assert RunState.from_json(content, "here").slabs == {}


def test_ranks_that_cut_alike_go_on(tmp_path):
    _, callback, _ = run_of(World(rank=0, size=2, link=OtherRank("8/4")), tmp_path)
    callback.on_train_begin()
    callback.on_train_batch_end(0)
    callback.on_epoch_end(0)


def test_ranks_that_do_not_end_together(tmp_path):
    _, callback, _ = run_of(World(rank=0, size=2, link=OtherRank("off")), tmp_path)
    callback.on_train_begin()
    with pytest.raises(
        InputError, match=r"train step into different slabs \(rank 0 8/4, rank 1 off\).*--slabs"
    ) as caught:
        callback.on_train_batch_end(0)
    assert is_of_all_ranks(caught.value)
