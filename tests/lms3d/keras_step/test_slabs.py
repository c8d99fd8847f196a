"""`LMS(slabs=...)`: results to rounding, and numbers that stay as they are whatever is planned later."""

from __future__ import annotations

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.errors import DoesNotFit, InputError
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.estimate import estimate
from lms3d.keras_step.step_runner import StepRunner
from lms3d.keras_step.variable_backup import VariableBackup
from tests.lms3d.engine.small_models import Losses, state

TRAIN = "train (2, 32, 32, 8) (2, 32, 32, 2)"


class Fitted:
    """One epoch of a small network from one and the same state; the LMS is left open for questions."""

    def __init__(self, lms: LMS, *more: keras.callbacks.Callback) -> None:
        self.model, (x, y) = network(), DATA
        self.lms, losses = lms, Losses()
        self.model.fit(x, y, batch_size=2, shuffle=False, verbose=0, callbacks=[losses, lms, *more])
        self.losses, self.weights = losses.seen, [v.numpy() for v in state(self.model)]

    def sliced_ops(self) -> int:
        (step,) = self.lms._runner.steps.values()
        return sum(op.name.startswith("slabs/") for op in step.prepared.function.graph.get_operations())


def network(size: int = 32) -> keras.Model:
    keras.utils.set_random_seed(5)
    inputs = y = keras.Input((size, size, 8))
    for i in range(4):
        y = keras.layers.Conv2D(40, 3, padding="same", name=f"conv{i}")(y)
        y = keras.layers.LeakyReLU()(y)
    y = keras.layers.GlobalAveragePooling2D(keepdims=True)(y) + y
    model = keras.Model(inputs, keras.layers.Conv2D(2, 1)(y))
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"], jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


DATA = [np.random.default_rng(1).normal(size=(10, 32, 32, c)).astype(np.float32) for c in (8, 2)]
SPEC = (tf.TensorSpec((2, 32, 32, 8)), tf.TensorSpec((2, 32, 32, 2)))


def same(one: Fitted, other: Fitted) -> None:
    assert one.losses == other.losses
    for mine, theirs in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("slabs", "numbers"), [({0: 4}, {0: 4}), ("4/1", {0: 4}), (5, {0: 5})])
def test_a_sliced_fit_equals_the_whole_one_to_rounding(slabs, numbers):
    whole, sliced = Fitted(LMS(slabs="off")), Fitted(LMS(slabs=slabs))
    np.testing.assert_allclose(sliced.losses, whole.losses, rtol=1e-5)
    for mine, theirs in zip(sliced.weights, whole.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)  # Adam divides by tiny gradients
    assert (whole.lms.slabs, sliced.lms.slabs) == ({}, numbers)
    assert sliced.sliced_ops() > 50
    same(Fitted(LMS(slabs=slabs)), sliced)


def test_where_nothing_asks_for_slabs_the_step_stays_whole():
    found = Fitted(LMS())
    assert (found.lms.slabs, found.lms.kept_slabs) == ({}, {TRAIN: "off"})
    assert found.sliced_ops() == 0
    same(found, Fitted(LMS(slabs="off")))


def test_where_the_whole_step_is_tried_and_has_no_plan_slabs_follow(monkeypatch):
    monkeypatch.setattr(tuning, "WHOLE_ROOM", 0.0)
    monkeypatch.setattr(tuning, "WHOLE_ROOM_MAPPED", 0.0)
    x, y = (np.zeros((2, 64, 64, channels), np.float32) for channels in (8, 2))

    def fitted(slabs: str) -> LMS:
        lms = LMS(memory_limit="3.4MiB", slabs=slabs)
        network(64).fit(x, y, batch_size=2, verbose=0, callbacks=[lms])
        return lms

    with pytest.raises(DoesNotFit):
        fitted("off")
    assert fitted("auto").slabs == {0: 4}


def test_a_step_that_has_little_room_as_a_whole_is_sliced():
    with pytest.raises(DoesNotFit) as caught:
        Fitted(LMS(memory_limit="300KiB", slabs="off"))
    limit = int(0.63 * caught.value.smallest_limit_bytes)  # which is in whole MiB
    found = Fitted(LMS(memory_limit=limit))
    assert found.lms.slabs
    assert found.lms.report.predicted_peak_bytes <= limit
    np.testing.assert_allclose(found.losses, Fitted(LMS()).losses, rtol=1e-5)


def test_swapping_changes_no_bit_of_a_sliced_step():
    alone = Fitted(LMS(enabled=False, slabs={0: 4}))
    swapped = Fitted(LMS(tier="host", swapout_threshold=1, swapin_ahead=1, swapin_groupby=0, sync_mode=0, slabs={0: 4}))
    assert swapped.lms.plan.swap_outs
    same(swapped, alone)


def test_a_step_that_runs_out_of_memory_keeps_its_slabs_in_the_next_plan(monkeypatch):
    execute, ran = StepRunner._execute, []

    def fails_once(self, prepared, batch):
        ran.append(prepared.slabs)
        if len(ran) > 1:
            return execute(self, prepared, batch)
        self.engine.settings = replace(self.engine.settings, slabs=((0, 2),))  # the choice would now be another one
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(StepRunner, "_execute", fails_once)
    monkeypatch.setattr(StepRunner, "_save", lambda self, step, prepared: VariableBackup([]))
    found = Fitted(LMS(slabs={0: 4}))
    assert set(ran) == {((0, 4),)}
    assert len(found.lms.report.rounds) == 2
    assert found.lms.kept_slabs == {TRAIN: "4/1"}


class Resumed(keras.callbacks.Callback):
    """Gives an LMS what an earlier part of the run kept."""

    def __init__(self, lms: LMS, kept: dict[str, str]) -> None:
        super().__init__()
        self.lms, self.kept = lms, kept

    def on_train_begin(self, logs=None) -> None:
        self.lms.keep_slabs(self.kept)


@pytest.mark.parametrize("asked", [{"slabs": "off"}, {"slabs": {0: 2}}, {"enabled": False}])
def test_slabs_of_an_earlier_part_of_the_run_are_used_whatever_is_asked_for(asked):
    first, lms = Fitted(LMS(slabs={0: 4})), LMS(**asked)
    later = Fitted(lms, Resumed(lms, first.lms.kept_slabs))
    assert later.lms.slabs == first.lms.slabs == {0: 4}
    same(later, first)


def test_evaluation_and_prediction_are_sliced_and_joined():
    whole, sliced = LMS(enabled=False), LMS(slabs={0: 4})
    model, (x, y) = network(), DATA
    expected = model.evaluate(x, y, batch_size=2, verbose=0, callbacks=[whole])
    np.testing.assert_allclose(model.evaluate(x, y, batch_size=2, verbose=0, callbacks=[sliced]), expected, rtol=1e-5)
    found = model.predict(x, batch_size=2, verbose=0, callbacks=[sliced])
    np.testing.assert_allclose(
        found, model.predict(x, batch_size=2, verbose=0, callbacks=[whole]), rtol=1e-4, atol=1e-5
    )
    assert list(sliced.kept_slabs.values()) == ["4/1", "4/1"]


def test_the_report_says_what_slabs_do_and_cost(tmp_path):
    lms = Fitted(LMS(slabs={0: 4})).lms
    report = lms.report
    assert report.slab_shapes == ((32, 32),)
    assert report.sliced_tensors > 20
    for part in ("level 0 (32 x 32) in 4 slabs", f"{report.sliced_tensors} tensors sliced", "joined: ", "to rounding"):
        assert part in report.headline()
    text = report.to_markdown()
    assert "| slabs | level 0 (32 x 32) in 4 slabs |" in text
    assert "| results | those of the whole step, to rounding |" in text
    lms.write(tmp_path)
    assert json.loads((tmp_path / "lms_plan.json").read_text())["train"]["report"]["slabs"] == [[0, 4]]
    assert "labs" not in Fitted(LMS()).lms.report.to_markdown()


def test_an_estimate_slices_as_training_does():
    assert estimate(network(), SPEC, slabs={0: 4}).slabs == ((0, 4),)
    assert estimate(network(), SPEC, slabs="off").slabs == ()


@pytest.mark.parametrize(
    ("slabs", "words"),
    [
        ("off", 'slabs are off (slabs="off")'),
        ({0: 4}, "the slabs are as given, or as the run began: 4/1"),
        ("auto", "slabs were tried, down to "),
    ],
)
def test_too_small_a_limit_says_which_slabs_were_tried(slabs, words):
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(2, 64, 64, c)).astype(np.float32) for c in (8, 2))
    with pytest.raises(DoesNotFit) as caught:
        network(64).fit(x, y, batch_size=2, verbose=0, callbacks=[LMS(memory_limit="100KiB", slabs=slabs)])
    assert words in str(caught.value)
    assert caught.value.smallest_limit_bytes > 100 << 10


@pytest.mark.parametrize("wrong", ["many", {0: -1}, {"full": 4}, "16/x", 2.5])
def test_slabs_that_are_refused(wrong):
    with pytest.raises(InputError, match="slabs"):
        LMS(slabs=wrong)
