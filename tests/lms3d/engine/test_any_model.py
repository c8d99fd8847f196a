"""Nothing is made for one network: a published classifier, a transformer, a loop of one's own, inference.

Every limit between the floor and the needs without LMS has a plan, which keeps it and changes no bit.
Residual and dense networks that take long to trace are planned and not run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import lms3d
from lms3d import models
from lms3d.engine.cost import Machine
from lms3d.engine.ir import StepGraph
from lms3d.engine.passes import joins
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tiers.disk import DiskTier
from lms3d.errors import InputError
from lms3d.keras_step.attachment import trace_step
from lms3d.keras_step.callback import LMS
from tests.lms3d.engine import transformers
from tests.lms3d.engine.small_models import Trainer, build, tight_limit
from tests.lms3d.engine.test_models import same
from tests.lms3d.engine.traced import rewrite, same_bits
from tests.thorough import also

MACHINE = Machine()


def between(graph: StepGraph, share: float = 0.5, machine: Machine = MACHINE) -> int:
    """A limit: `share` 0 is the floor, 1 what the step needs without LMS."""
    _, known = make_plan(Settings(limit_bytes=1 << 40).request(graph, machine))
    assert known.floor_bytes < known.unedited_limit_bytes
    return int(known.floor_bytes + share * (known.unedited_limit_bytes - known.floor_bytes))


def transformer(layers: int = 2, tokens: int = 64, width: int = 32) -> keras.Model:
    """Pre-norm encoder: attention and MLP, each with dropout and a residual connection: (B, tokens, width) -> (B, 5)."""
    keras.utils.set_random_seed(7)
    inputs = x = keras.Input((tokens, width))
    for _ in range(layers):
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(4 * width, activation="gelu")(y)
        x = x + keras.layers.Dropout(0.1)(keras.layers.Dense(width)(y))
    model = keras.Model(inputs, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling1D()(x)))
    model.compile(optimizer=keras.optimizers.SGD(1e-3, momentum=0.9), loss="mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def trainer(name: str) -> Trainer:
    if name != "transformer":
        return Trainer(*build(name))
    random = np.random.default_rng(3)
    x = random.normal(size=(10, 64, 32)).astype(np.float32)
    return Trainer(transformer(), x, random.normal(size=(10, 5)).astype(np.float32))


@pytest.mark.parametrize("name", ["transformer", *also("MobileNetV3Small")])
def test_training(name, tmp_path):
    made = trainer(name)
    without = made.train(LMS(enabled=False), epochs=1)
    limit = tight_limit(without.prepared, share=0.1)
    with_lms = made.train(LMS(slabs="off", memory_limit=limit, tier="disk", swap_dir=tmp_path))
    plan, report = with_lms.plans("train")[0], with_lms.prepared[0].prediction
    assert not plan.empty  # for the transformer another order of its ops may be enough
    assert report.predicted_peak_bytes <= limit < report.unedited_limit_bytes
    same(with_lms, without)


@pytest.mark.parametrize("name", ["gpt", *also("segformer")])
def test_a_transformer_of_ones_own_trains_in_half_the_memory(name, tmp_path):
    """Estimated before the model is built, as a user would; then trained from the same weights."""
    model, x, y = transformers.make(name)
    needed = lms3d.estimate(model, (x[:2], y[:2]), with_floor=False).unedited_limit_bytes
    made = Trainer(model, x, y)
    without = made.train(LMS(enabled=False))
    with_lms = made.train(LMS(slabs="off", memory_limit=needed // 2, tier="disk", swap_dir=tmp_path))
    plan, report = with_lms.plans("train")[0], with_lms.prepared[0].prediction
    assert plan.recomputes or plan.swap_outs
    assert report.predicted_peak_bytes <= needed // 2 < report.unedited_limit_bytes
    same(with_lms, without)


def step_of(application: str, kind: str) -> StepGraph:
    model = getattr(keras.applications, application)(input_shape=(32, 32, 3), weights=None, classes=5)
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    spec = (tf.TensorSpec((8, 32, 32, 3)), tf.TensorSpec((8, 5)))
    function = trace_step(model, kind, spec if kind == "train" else spec[:1])
    joins.keep_apart(function.graph)
    return capture(function)


@pytest.mark.parametrize(
    ("application", "kind"), [("ResNet50", "predict"), *also(("ResNet50", "train"), ("DenseNet121", "predict"))]
)
def test_large_classifiers_are_planned(application, kind):
    graph = step_of(application, kind)
    limit = between(graph, 0.7)
    plan, report = make_plan(Settings(limit_bytes=limit).request(graph, MACHINE, with_floor=False))
    assert not plan.empty
    assert report.predicted_peak_bytes <= limit


def test_a_tape_in_a_function_of_ones_own(tmp_path):
    """A custom training loop: the update of the variables is part of the function, and runs as often as before."""
    start = [np.random.default_rng(i).normal(size=(64, 64)).astype(np.float32) / 8 for i in range(6)]
    weights = [tf.Variable(w) for w in start]

    def update(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for w in weights:
                y = tf.nn.gelu(tf.matmul(y, w))
            loss = tf.reduce_mean(tf.square(y - x))
        for w, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(0.1 * gradient)
        return loss

    def losses(function) -> list[bytes]:
        for w, value in zip(weights, start, strict=True):
            w.assign(value)
        seen = [function(tf.constant(x)).numpy().tobytes() for x in data]
        return seen + [w.numpy().tobytes() for w in weights]

    data = np.random.default_rng(9).normal(size=(3, 1024, 64)).astype(np.float32)
    function = functions.trace(update, tf.TensorSpec((1024, 64)))
    graph = capture(function)
    expected = losses(functions.make_function(function))
    limit = between(graph)
    lms = LMS(slabs="off", memory_limit=limit, tier="disk", swap_dir=tmp_path)
    made = lms.rewrite(function)
    assert lms.plan.recomputes or lms.plan.swap_outs
    assert lms.report.predicted_peak_bytes <= limit
    assert losses(made) == expected
    lms.close()


def inference(x: tf.Tensor) -> tf.Tensor:
    """A long skip connection, as in a U-net."""
    skip = y = tf.nn.softmax(x)
    for _ in range(4):
        y = tf.nn.softmax(tf.concat([y, tf.tanh(y)], -1)[:, ::2])
    return tf.reduce_sum(y * skip, -1)


def test_inference_of_a_function(tmp_path):
    spec = tf.TensorSpec((1024, 256))
    data = tf.random.stateless_normal(spec.shape, (1, 2))
    function = functions.trace(inference, spec)
    expected = functions.make_function(function)(data)
    limit = between(capture(function, batches=()), 0.1)  # what the caller passes lies there already, with the rest
    lms = LMS(slabs="off", memory_limit=limit, tier="disk", swap_dir=tmp_path)
    made = lms.rewrite(function)
    assert lms.plan.recomputes or lms.plan.swap_outs
    assert lms.report.predicted_peak_bytes <= limit
    same_bits(made(data), expected)
    lms.close()


class Measured(NamedTuple):
    before: int
    after: int
    same_bits: bool
    predicted: int
    limit: int


def predict_unet3d(folder: Path) -> Measured:
    """Peaks above the bytes in use before, of the network's prediction of one volume of 64^3 voxels."""
    keras.utils.set_random_seed(7)
    model = models.build("unet3d", input_shape=(64, 64, 64, 4), filters=(8, 16, 32))
    spec = tf.TensorSpec((1, 64, 64, 64, 4))
    data = tf.random.stateless_normal(spec.shape, (1, 2))

    def peak(function) -> tuple[int, bytes]:
        found = []
        for _ in range(3):
            tf.config.experimental.reset_memory_stats("CPU:0")
            idle = tf.config.experimental.get_memory_info("CPU:0")["current"]
            result = function((data,)).numpy()
            found.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - idle)
        return min(found), result.tobytes()

    before, expected = peak(functions.make_function(trace_step(model, "predict", (spec,))))
    function = trace_step(model, "predict", (spec,))
    graph = capture(function)
    in_place = replace(MACHINE, mapped=True)
    limit = between(graph, 0.1, in_place)
    plan, report = make_plan(Settings(limit_bytes=limit).request(graph, in_place))
    assert plan.swap_outs
    tier = DiskTier(folder)
    made, _ = rewrite(function, graph, plan, tier)
    after, result = peak(made)
    tier.close()
    return Measured(before, after, result == expected, report.predicted_peak_bytes, limit)


def test_inference_takes_less_memory(tmp_path, in_fresh_process):
    """The skip connections wait on the disk, and are read there."""
    measured = in_fresh_process(predict_unet3d, tmp_path)
    assert measured.same_bits
    assert measured.predicted <= measured.limit
    assert measured.after < 0.95 * measured.before


def test_a_function_that_a_tape_has_differentiated_is_refused():
    function = functions.trace(inference, tf.TensorSpec((64, 64)))
    data = tf.Variable(tf.ones((64, 64)))
    with tf.GradientTape() as tape:
        result = function(data)
    assert tape.gradient(result, data) is not None
    with pytest.raises(InputError, match="a GradientTape has taken gradients of this function"):
        LMS(tier="host").rewrite(function)
