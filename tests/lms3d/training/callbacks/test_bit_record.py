"""`--record-bits`: jobs that repeat each other are alike step by step; a slip is found in the very step, with its arrays."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

import lms3d
from lms3d.errors import Interrupted
from lms3d.training import trainer
from lms3d.training.run import Data, Job, TrainingSchedule
from tests.lms3d.training.test_trainer import STEPS, CtrlC, dataset, make_model, tf


class Slip(keras.callbacks.Callback):
    """One bit of one weight, before a step."""

    def __init__(self, epoch: int, step: int) -> None:
        super().__init__()
        self.where, self.epoch = (epoch, step), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch + 1

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch + 1) == self.where:
            kernel = self.model.trainable_variables[0]
            changed = np.asarray(kernel).copy()
            changed.flat[7] = np.nextafter(changed.flat[7], np.float32(np.inf))
            kernel.assign(changed)


@pytest.fixture
def job(tmp_path, capsys):
    """`job("run", callbacks)` trains two epochs, or the rest of them, and returns its words about its record."""

    def train(name, *callbacks, resume=False, **lms):
        keras.backend.clear_session()  # names of layers begin anew, as in another process
        model = make_model()
        data = Data(
            training=lambda first: dataset(tf.data.Dataset.range(first, 10**6)),
            validation=dataset(tf.data.Dataset.range(900, 902)),
        )
        where = Job(run_dir=tmp_path / name, resume=resume, record_bits=tmp_path / "bits")
        swapper = lms3d.LMS(**lms)
        try:
            trainer.train(model, data, TrainingSchedule(epochs=2, steps_per_epoch=STEPS), where, [swapper, *callbacks])
        except Interrupted:
            pass
        finally:
            swapper.close()
        return [line.partition("bits: ")[2] for line in capsys.readouterr().out.splitlines() if "--record-bits" in line]

    return train


ALL = 2 * STEPS
SWAPPING = {"tier": "host", "swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}


def test_a_slip_is_found_in_its_step(tmp_path, job):
    assert job("first") == [f"{ALL} steps added, 0 compared; none differs"]
    assert job("swapping", **SWAPPING) == [f"0 steps added, {ALL} compared; none differs"]
    told = job("slipped", Slip(2, 3))
    assert told == [f"0 steps added, {STEPS + 3} compared; the first that differs is kept there"]
    (note,) = tmp_path.glob("bits/*.json")
    found = json.loads(note.read_text())
    assert (found["epoch"], found["step"]) == (2, 3)
    assert any("conv3d/kernel" in name for name in found["differ"])
    assert not any("batch" in name for name in found["differ"])
    with np.load(note.with_suffix(".npz")) as arrays:
        assert {name.partition("/")[0] for name in arrays} == {"before", "found"}
        assert arrays["found/batch/0"].shape == (1, 4, 4, 4, 2)


def test_a_run_that_is_interrupted_and_resumed_has_the_bits_of_one_that_is_not(job):
    job("straight")
    assert job("stopped", CtrlC(1, 1)) == [f"0 steps added, {STEPS + 2} compared; none differs"]
    rest, whole = job("stopped", resume=True), "none differs"
    assert rest == [f"0 steps added, {STEPS - 2} compared; {whole}"]


def test_a_run_that_differed_stays_out_of_the_record_when_it_is_resumed(job):
    job("first")
    (slipped,) = job("slipped", Slip(1, 1), CtrlC(1, 1))
    assert slipped == "0 steps added, 1 compared; the first that differs is kept there"
    assert job("slipped", resume=True)[0] == "0 steps added, 0 compared; one differs"


def test_without_the_option_nobody_listens(tmp_path):
    assert lms3d.LMS().after_step is None
    assert Job(run_dir=tmp_path).record_bits is None
