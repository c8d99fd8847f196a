"""What one rank knows, all ranks do at the same step."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from lms3d.errors import Diverged, Interrupted, is_of_all_ranks
from lms3d.ranks.elastic import HostsChanged, Memory
from lms3d.ranks.world import World
from lms3d.training import run_state
from lms3d.training.callbacks.rank_agreement import RankAgreement
from lms3d.training.callbacks.step_counter import StepCounter
from lms3d.training.run import Data, Job, TrainingRun, TrainingSchedule


class OtherRank:
    """A link of two ranks of which the other one has raised flags."""

    def __init__(self) -> None:
        self.flags, self.exchanges = {}, 0

    def gather(self, values):
        self.exchanges += 1
        flags = self.flags if len(values) > 1 else {}  # of a step; else of one question about something else
        return np.array([values, [flags.get(place, 0.0) for place in range(len(values))]])

    def gather_bytes(self, message):
        return [message, message]

    def mean(self, values):
        return values


ASKED, DIVERGED, STOP, DUE, CHANGED = range(5)


@pytest.fixture
def step(tmp_path):
    """`step(flag)`: one step, in which the other rank raises a flag."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    link = OtherRank()
    world = World(rank=0, size=2, link=link)
    job = Job(run_dir=tmp_path, world=world, memory=Memory())
    data = Data(training=lambda first: None, validation=None)
    schedule = TrainingSchedule(epochs=1, steps_per_epoch=4, validation_steps=2)
    run = TrainingRun(model, data, schedule, job, SimpleNamespace(asked=False))
    callbacks = [StepCounter(run), RankAgreement(run)]
    model.stop_training = False

    def take(*flags, loss=0.5):
        link.flags = dict.fromkeys(flags, 1.0)
        for callback in callbacks:
            callback.set_model(model)
            callback.on_train_batch_end(0, {"loss": loss})

    take.run, take.model, take.link, take.agreement = run, model, link, callbacks[1]
    return take


def test_a_step_that_nobody_objects_to(step):
    step()
    assert step.run.state.position.step == 1
    assert step.run.state.samples == 2
    assert step.run.memory.committed is None


def test_ctrl_c_on_another_rank_saves_and_leaves(step):
    with pytest.raises(Interrupted, match="interrupted in epoch 1 after step 1") as caught:
        step(ASKED)
    assert is_of_all_ranks(caught.value)
    snapshot, _ = run_state.read(step.run.dir)
    assert snapshot.state == step.run.state
    assert len(snapshot.of_ranks) == 2


@pytest.mark.parametrize(
    ("flags", "loss", "message"),
    [((DIVERGED,), 0.5, "not finite on another rank"), ((), float("nan"), "the loss is nan")],
)
def test_a_loss_that_is_not_finite_ends_all(step, flags, loss, message):
    with pytest.raises(Diverged, match=f"{message} in epoch 1, step 1; nothing was saved before; .*--learning-rate"):
        step(*flags, loss=loss)
    assert run_state.read(step.run.dir) is None


def test_a_callback_of_another_rank_stops_all(step):
    step(STOP)
    assert step.model.stop_training


def test_a_commit_is_due_and_hosts_have_changed(step):
    step(DUE)
    assert step.run.memory.committed.state.position.step == 1
    assert run_state.read(step.run.dir) is None  # in memory alone
    with pytest.raises(HostsChanged):
        step(DUE, CHANGED)
    assert step.run.memory.committed.state.position.step == 2


def test_a_rank_with_fewer_validation_batches_agrees_as_often(step):
    step.link.exchanges = 0
    step.link.flags = {}
    step.run.validation_batches = 3
    step.agreement.on_test_begin()
    step.agreement.on_test_batch_end(0)
    step.agreement.on_test_end()
    assert step.link.exchanges == 3
