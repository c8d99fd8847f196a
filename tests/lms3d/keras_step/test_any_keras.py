"""Whatever Keras takes, LMS takes, and no bit changes: kinds of data, of weights, of steps and optimisers; models not built yet.

Each case trains, evaluates and predicts a tiny model twice: with its step left alone, and with every tensor of it swapped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.errors import InputError
from lms3d.keras_step.callback import LMS

SWAP_ALL = {"tier": "host", "swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 1, "sync_mode": 0}
RANDOM = np.random.default_rng(3)
X, Y = (RANDOM.normal(size=(6, c)).astype(np.float32) for c in (8, 3))
CLASSES = np.array([0, 1, 2, 0, 1, 2])


def mlp(**options: Any) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [layers.Dense(16, activation="tanh", **options), layers.Dropout(0.3), layers.Dense(3, **options)]
    )


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    model.compile(**{"optimizer": "adam", "loss": "mse", "jit_compile": False, **options})
    return model


class Subclassed(keras.Model):
    """Layers are made with the model, and built by the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop, self.out = (
            keras.layers.Dense(16, "tanh"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if isinstance(x, dict):
            x = keras.ops.concatenate([x["left"], x["right"]], -1)
        if isinstance(x, tf.RaggedTensor):
            x = tf.reduce_mean(x, 1)
        return self.out(self.drop(self.hidden(x), training=training))


class OwnStep(Subclassed):
    """Two losses, gradients clipped by hand."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            error = self(x, training=True) - y
            loss = tf.reduce_mean(tf.square(error)) + 0.1 * tf.reduce_mean(tf.abs(error))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip([tf.clip_by_norm(g, 0.5) for g in gradients], self.trainable_variables, strict=True)
        )
        return {"loss": loss}


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]


def generated() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        yield X[:2], Y[:2]


def ragged() -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(RANDOM.normal(size=(12, 8)).astype(np.float32), [1, 3, 2, 2, 1, 3])


HALVES = {"left": X[:, :3], "right": X[:, 3:]}
CASES: dict[str, tuple[Callable[[], keras.Model], dict[str, Any]]] = {
    "sequential without input": (lambda: compiled(mlp()), {"x": X, "y": Y}),
    "subclassed": (lambda: compiled(Subclassed(), metrics=["mae"]), {"x": X, "y": Y}),
    "sample weights": (lambda: compiled(mlp()), {"x": X, "y": Y, "sample_weight": np.arange(6.0)}),
    "class weights": (
        lambda: compiled(mlp(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=["acc"]),
        {"x": X, "y": CLASSES, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
    ),
    "generator": (lambda: compiled(mlp()), {"x": generated, "steps_per_epoch": 3}),
    "PyDataset": (lambda: compiled(mlp()), {"x": Batches}),
    "dataset with a smaller last batch": (
        lambda: compiled(mlp()), {"x": lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)}
    ),
    "dictionary": (lambda: compiled(Subclassed()), {"x": HALVES, "y": Y}),
    "ragged": (lambda: compiled(Subclassed()), {"x": ragged(), "y": tf.constant(Y)}),
    "sparse": (lambda: compiled(mlp()), {"x": tf.sparse.from_dense(np.where(X > 0, X, 0)), "y": Y}),
    "own train_step": (lambda: compiled(OwnStep()), {"x": X, "y": Y}),
    "averaged weights": (
        lambda: compiled(mlp(), optimizer=keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=2)), {"x": X, "y": Y}
    ),
    "loss scaling": (lambda: compiled(mlp(dtype="mixed_float16")), {"x": X, "y": Y}),
    "several steps per execution": (lambda: compiled(mlp(), steps_per_execution=2), {"x": X, "y": Y}),
}  # fmt: skip


ALSO_EVALUATED = ("subclassed", "dictionary", "ragged", "sparse", "several steps per execution")


def results(name: str, lms: LMS) -> list[bytes]:
    """Bits of losses, weights, slots, evaluation and predictions."""
    keras.utils.set_random_seed(5)
    make, given = CASES[name]
    model, data = make(), {k: v() if callable(v) else v for k, v in given.items()}
    if isinstance(data["x"], np.ndarray | dict):
        data["batch_size"] = 2
    losses = model.fit(**data, epochs=2, shuffle=False, verbose=0, callbacks=[lms]).history["loss"]
    found = [np.float64(losses)] + [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    if name in ALSO_EVALUATED:
        found.append(np.float64(model.evaluate(data["x"], data["y"], verbose=0, callbacks=[lms])))
        found.append(model.predict(data["x"], verbose=0, callbacks=[lms]))
    return [np.asarray(f).tobytes() for f in found]


@pytest.mark.parametrize("name", CASES)
def test_no_bit_changes(name):
    swapped = LMS(**SWAP_ALL)
    assert results(name, swapped) == results(name, LMS(enabled=False))
    assert swapped.reports["train"].swapped_out_bytes > 0
    swapped.close()


def test_ragged_batches_are_said_not_to_be_planned_once(caplog):
    model = compiled(Subclassed())
    with caplog.at_level(logging.WARNING, "lms3d"):
        model.fit(ragged(), tf.constant(Y), epochs=2, verbose=0, callbacks=[LMS()])
    told = [r.getMessage() for r in caplog.records if "ragged or sparse" in r.getMessage()]
    assert len(told) == 1


HOOKS = [f"on_{kind}_{when}" for kind in ("train_batch", "epoch") for when in ("begin", "end")] + [
    "on_train_begin",
    "on_test_end",
]


def test_training_stops_where_it_stops_without_lms():
    """`stop_training` set in any hook, at its second call."""
    model = compiled(mlp())

    def steps(hook: str, *lms: LMS) -> list[str]:
        calls: list[str] = []

        def called(*_: Any, **__: Any) -> None:
            calls.append(hook)
            model.stop_training = calls.count(hook) == 2 or hook == "on_train_begin"

        stopper = keras.callbacks.Callback()
        setattr(stopper, hook, called)
        counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: calls.append("step"))
        model.fit(X, Y, batch_size=2, epochs=4, validation_data=(X, Y), verbose=0, callbacks=[*lms, stopper, counter])
        return calls

    without = {hook: steps(hook) for hook in HOOKS}
    lms = LMS()
    assert {hook: steps(hook, lms) for hook in HOOKS} == without
    assert all(0 < calls.count("step") < 12 for calls in without.values())


def test_a_distribution_strategy_is_refused_in_one_line():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = compiled(mlp())
    with pytest.raises(
        InputError, match="LMS does not work inside OneDeviceStrategy; run one process per device"
    ) as refusal:
        model.fit(X, Y, verbose=0, callbacks=[LMS()])
    assert "\n" not in str(refusal.value)
