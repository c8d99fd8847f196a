"""What a long run leaves behind: of many batch shapes and many steps only the latest are kept; random numbers go on."""

from __future__ import annotations

import gc
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import script_ops

from lms3d.engine import tuning
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.step_log import KEPT_SECONDS, StepStatistics
from lms3d.keras_step.step_runner import StepRunner

SWAPPING = {
    "tier": "disk", "sync_mode": 0, "swapout_threshold": 4, "swapin_ahead": 1, "swapin_groupby": 0,
}  # fmt: skip


def model() -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = y = keras.Input((None, 4))
    for _ in range(4):
        y = keras.layers.Dense(4, activation="tanh")(y)
    made = keras.Model(inputs, y)
    made.compile(optimizer="adam", loss="mse", jit_compile=False)
    return made


def batches(lengths: list[int]) -> tf.data.Dataset:
    spec = tf.TensorSpec((2, None, 4))
    arrays = [np.full((2, length, 4), 0.1, np.float32) for length in lengths]
    return tf.data.Dataset.from_generator(lambda: zip(arrays, arrays, strict=True), output_signature=(spec, spec))


def called_by_graphs() -> int:
    """Functions of Python that TensorFlow holds."""
    gc.collect()
    return script_ops._py_funcs.size()


def calls_of(step: Any) -> list[tf.Operation]:
    return [op for op in step.prepared.function.graph.get_operations() if op.type in ("EagerPyFunc", "PyFunc")]


def test_of_many_batch_shapes_the_latest_are_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "MOST_STEPS", 3)
    lms, trained, stock = LMS(swap_dir=tmp_path, **SWAPPING), model(), model()
    lengths = [5, 6, 7, 8, 9, 5, 9, 5]
    before = called_by_graphs()
    trained.fit(batches(lengths), callbacks=[lms], verbose=0)
    new = called_by_graphs() - before
    stock.fit(batches(lengths), callbacks=[LMS(enabled=False)], verbose=0)
    for one, other in zip(trained.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    kept = lms._runner.steps
    assert [spec.count("9") + spec.count("5") for _, spec in kept]  # in the order of their last use
    assert len(kept) == 3
    files = len(list(tmp_path.rglob("*.bin")))
    assert files == sum(len(step.prepared.plan.swap_outs) for step in kept.values()) > 0
    of_data = new - sum(len(calls_of(step)) for step in kept.values())
    assert 0 <= of_data < 4
    assert lms.report.predicted_peak_bytes == max(told.predicted_peak_bytes for told, _ in lms._runner.reports())
    assert len(lms._runner._backups) == 1


def graphs() -> int:
    """Traced graphs that are in memory, and with them their variables."""
    gc.collect()
    return sum(isinstance(one, tf.Graph) for one in gc.get_objects())


def test_a_model_that_was_trained_does_not_stay(tmp_path):
    def train() -> None:
        model().fit(batches([5, 6]), callbacks=[LMS(swap_dir=tmp_path, **SWAPPING)], verbose=0)

    train()
    before = graphs()
    train()
    assert graphs() == before


def test_figures_of_a_plan_take_no_more_memory_with_every_step():
    statistics = StepStatistics()
    plan = statistics.next_plan()
    for number in range(3 * KEPT_SECONDS):
        seconds = 9.0 if number < 1500 else 1.0
        statistics.add({"kind": "train", "plan": plan, "seconds": seconds, "peak_bytes": number})
    assert (statistics.steps, statistics.steps_of(plan)) == (3 * KEPT_SECONDS, 3 * KEPT_SECONDS)
    assert statistics.median_seconds(plan) == 1.0
    assert statistics.peak_bytes(plan) == 3 * KEPT_SECONDS - 1
    assert len(statistics._figures[plan].seconds) == KEPT_SECONDS
    statistics.forget(plan)
    assert (statistics.steps_of(plan), statistics.median_seconds(plan)) == (0, None)


class Noise(keras.layers.Layer):
    """Random numbers of TensorFlow's own, whose state is in the kernel."""

    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x), seed=7)


class SeededNoise(keras.layers.Layer):
    """The same with Keras's, whose state is a variable."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(7)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal((4, 8), seed=self.generator)


def noisy(layer: keras.layers.Layer) -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    y = keras.layers.Dense(8, activation="tanh")(layer(keras.layers.Dense(8, activation="tanh")(inputs)))
    made = keras.Model(inputs, keras.layers.Dense(8)(y))
    made.compile(optimizer="sgd", loss="mse", jit_compile=False)
    return made


@pytest.mark.parametrize(("layer", "adapts"), [(Noise, False), (SeededNoise, True)])
def test_a_plan_is_not_tried_anew_where_random_numbers_would_begin_again(monkeypatch, layer, adapts):
    asked = []

    def propose(feedback: Any, steps_left: int | None = None) -> None:
        asked.append(feedback.changes_left > 0)

    monkeypatch.setattr("lms3d.keras_step.adaptation.Feedback.propose", propose)
    noisy(layer()).fit(np.ones((4, 8)), np.ones((4, 8)), batch_size=4, epochs=6, verbose=0, callbacks=[LMS()])
    assert asked == [adapts]


@pytest.mark.parametrize(("layer", "failing", "warned"), [(Noise, 2, True), (Noise, 0, False), (SeededNoise, 2, False)])
def test_random_numbers_that_begin_again_are_told(monkeypatch, caplog, layer, failing, warned):
    """Out of memory there is no choice."""
    calls, execute = [], StepRunner._execute

    def run(runner: StepRunner, prepared: Any, batch: Any) -> Any:
        calls.append(prepared)
        if len(calls) == failing + 1:
            raise tf.errors.ResourceExhaustedError(None, None, "a test")
        return execute(runner, prepared, batch)

    monkeypatch.setattr(StepRunner, "_execute", run)
    monkeypatch.setattr(
        StepRunner, "_save", lambda runner, step, prepared: type("None", (), {"restore": lambda s: None})()
    )
    noisy(layer()).fit(np.ones((4, 8)), np.ones((4, 8)), batch_size=4, epochs=4, verbose=0, callbacks=[LMS()])
    assert len(calls) == 5
    assert ("begin anew" in caplog.text) == warned
