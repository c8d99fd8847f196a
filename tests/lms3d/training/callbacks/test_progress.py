"""`--profile`: TensorFlow's profiler really writes, over exactly the steps that were named, with LMS at work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.errors import InputError
from lms3d.keras_step.callback import LMS
from lms3d.ranks.world import World
from lms3d.tasks.brats.options import BratsConfig
from lms3d.training import demo
from lms3d.training.callbacks.progress import Profile
from lms3d.training.run import TrainingSchedule
from lms3d.training.session import Session, Training

STEPS = 5
SWAP = {"tier": "disk", "swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}


def profiled_events(folder: Path) -> Counter[str]:
    """Name of an event, such as LMS's mark of a transfer -> how often it came in the profile; empty if there is none."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    names: Counter[str] = Counter()
    for file in folder.glob("plugins/profile/*/*.xplane.pb"):  # where TensorBoard looks
        for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
            names.update(plane.event_metadata[event.metadata_id].name for line in plane.lines for event in line.events)
    return names


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained((2, 2, 4))` -> transfers out in the profile for each of the plan; optimiser's steps when it began and ended."""
    model = keras.Sequential([keras.Input((16,)), *[keras.layers.Dense(16, "tanh") for _ in range(3)]])
    model.compile("sgd", "mse", jit_compile=False)
    lms = LMS(swap_dir=tmp_path_factory.mktemp("swap"), adapt=False, **SWAP)

    def run(where, epochs=3, **options) -> tuple[float, list[int]]:
        folder, begun = tmp_path_factory.mktemp("tensorboard"), []
        model.optimizer.iterations.assign(0)
        profiler = tf.profiler.experimental
        with pytest.MonkeyPatch.context() as patch:
            for name in ("start", "stop"):
                call = getattr(profiler, name)
                patch.setattr(
                    profiler, name, lambda *a, call=call: (begun.append(int(model.optimizer.iterations)), call(*a))
                )
            model.fit(
                tf.data.Dataset.from_tensors(np.ones((2, 2, 16), np.float32)).map(lambda x: (x[0], x[1])).repeat(),
                epochs=epochs, verbose=0, shuffle=False, callbacks=[lms, Profile(where, folder, STEPS)],
                **{"steps_per_epoch": STEPS, **options},
            )  # fmt: skip
        assert lms.plan.swap_outs
        return profiled_events(folder)["lms/transfer/out"] / len(lms.plan.swap_outs), begun

    yield run
    lms.close()


@pytest.mark.parametrize(
    ("where", "options", "begun"),
    [
        ((2, 2, 4), {}, [6, 9]),
        ((1, 1, 1), {}, [0, 1]),
        ((2, 4, 9), {}, [8, 10]),  # the end of the epoch ends it
        ((2, 4, 5), {"initial_epoch": 1, "epochs": 2, "steps_per_epoch": 3}, [1, 3]),  # resumed after the second step
        ((2, 1, 4), {"initial_epoch": 1, "epochs": 2, "steps_per_epoch": 3}, [0, 2]),  # the rest of the range
        ((4, 1, 2), {}, []),
    ],
    ids=["middle", "one step", "beyond the end", "after a resume", "resumed within", "never"],
)
def test_the_profile_has_the_steps_that_were_named(trained, where, options, begun):
    transfers, found = trained(where, **options)
    assert found == begun
    assert transfers == (begun[1] - begun[0] if begun else 0)


def test_a_range_that_training_ended_before_is_told(capsys):
    """A demonstration, whose epochs nobody knows before."""
    profile = Profile((4, 2, 3), Path("tensorboard"), STEPS)
    profile.tell_if_missed(3)
    assert "epoch 4, step 2 was never reached; training ended after epoch 3" in capsys.readouterr().out
    profile.reached = True
    profile.tell_if_missed(4)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(("given", "guarded"), [({}, True), ({"epochs": 3}, False), ({"data": Path("brains")}, False)])
def test_the_clock_ends_a_demonstration_and_nothing_else(given, guarded):
    options = BratsConfig(**given)
    session = Session(options=options, run_dir=Path("run"), resuming=False, profile=None, arguments=(), time_share=0.5)
    training = Training(session=session, options=options, task=None, material=None, world=World(), memory=None)
    guard = training._time_guard(TrainingSchedule(epochs=9, steps_per_epoch=STEPS, validation_steps=2))
    assert (guard is not None) == guarded
    if guard is not None:
        assert 0 <= guard.seconds_left <= 0.5 * demo.END_SECONDS


def test_a_range_that_is_never_reached_is_refused():
    options = BratsConfig(epochs=3, steps_per_epoch=STEPS, validation_steps=1)

    def require(where):
        session = Session(options=options, run_dir=Path("run"), resuming=False, profile=where, arguments=())
        Training(
            session=session, options=options, task=None, material=None, world=World(), memory=None
        ).require_profile()

    require(None)
    require((3, STEPS, STEPS + 1))
    for where in ((4, 1, 2), (1, STEPS + 1, STEPS + 1)):
        with pytest.raises(InputError, match=r"--profile \d:\d-\d is never reached: the run has 3 epochs of 5 steps"):
            require(where)
