"""Networks whose steps are compared, whole against sliced, from the same state on the same batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from keras import layers

from lms3d.engine.passes import joins, shapes, slicing
from lms3d.engine.slabs.sliced_step import SlicedStep
from lms3d.engine.tensorflow import functions
from lms3d.keras_step.attachment import trace_step

EXACT = 1e-10


@dataclass(frozen=True)
class Run:
    """What some steps returned, all variables after them, by how much the weights changed, and the sliced tensors."""

    results: list[Any]
    variables: dict[str, np.ndarray]
    change: np.ndarray
    step: SlicedStep

    @property
    def joined(self) -> set[str]:
        return {kind for _, kind, _ in self.step.joined}


def run(model: keras.Model, batch: Any, slabs: Mapping[int, int], *, kind: str = "train", steps: int = 3) -> Run:
    """`steps` steps from the model's present state, which is put back afterwards."""
    state = [*model.variables, *(model.optimizer.variables if kind == "train" else ())]
    before = [v.numpy() for v in state]
    function = trace_step(model, kind, tf.nest.map_structure(tf.type_spec_from_value, batch))
    joins.keep_apart(function.graph)
    shapes.fix_shapes(function.graph)
    step = slicing.slice_function(function, slabs).step
    made = functions.make_function(function)
    model.reset_metrics()
    results = [tf.nest.map_structure(lambda t: tf.cast(t, tf.float64).numpy(), made(batch)) for _ in range(steps)]
    after = {f"{i} {v.path}": np.asarray(v.numpy(), np.float64) for i, v in enumerate(state) if v.dtype != "string"}
    start = {v.path: value for v, value in zip(state, before, strict=True)}
    change = [np.asarray(v.numpy() - start[v.path], np.float64).ravel() for v in model.trainable_variables]
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    return Run(results, after, np.concatenate(change), step)


def compiled(model: keras.Model, loss: Any = "mse", optimizer: Any = None, **rest: Any) -> keras.Model:
    model.compile(optimizer=optimizer or keras.optimizers.Adam(1e-2), loss=loss, jit_compile=False, **rest)
    model.optimizer.build(model.trainable_variables)
    return model


def batch_for(model: keras.Model, size: int = 1, dtype: str = "float64") -> tuple[tf.Tensor, tf.Tensor]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, *model.input_shape[1:]))
    y = rng.random((size, *model.output_shape[1:])) > 0.6
    return tf.constant(x, dtype), tf.constant(y, dtype)


def same(whole: Run, cut: Run, error: float = EXACT) -> None:
    """Losses and every variable, relative to the largest number of each."""
    for a, b in zip(tf.nest.flatten(whole.results), tf.nest.flatten(cut.results), strict=True):
        np.testing.assert_allclose(b, a, rtol=max(error, 2e-7), atol=0)  # Keras keeps means of losses in float32
    for name, a in whole.variables.items():
        np.testing.assert_allclose(cut.variables[name], a, rtol=0, atol=error * max(1.0, np.abs(a).max()), err_msg=name)


def in_float64(model: keras.Model) -> keras.Model:
    """Its last layer, too, which asks for float32 by itself."""
    for layer in model.layers:
        layer.dtype_policy = keras.DTypePolicy("float64")
    return model


def u_net(shape: Sequence[int] = (17, 12, 2), filters: Sequence[int] = (3, 4, 5)) -> keras.Model:
    """Keras layers, sliced by rows: max pooling, transposed convolutions, skips, batch normalisation, dropout."""
    x = inputs = keras.Input(shape)
    x, skips = layers.ZeroPadding2D(((1, 2), (0, 0)))(x), []
    for count in filters[:-1]:
        x = _twice(x, count)
        skips.append(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.SpatialDropout2D(0.3, seed=1)(_twice(x, filters[-1]))
    for count, skip in zip(reversed(filters[:-1]), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(count, 2, strides=2, padding="same")(x)
        x = _twice(layers.Concatenate()([x, skip]), count)
    x = layers.Cropping2D(((1, 2), (0, 0)))(x)
    return keras.Model(inputs, layers.Conv2D(3, 1, activation="softmax")(x))


def _twice(x: Any, count: int) -> Any:
    for _ in range(2):
        x = layers.BatchNormalization()(layers.Conv2D(count, 3, padding="same")(x))
        x = layers.ReLU()(x)
    return x


@dataclass(frozen=True)
class Stack:
    """A network made by chance. parts: what follows what, in words; build: makes it."""

    parts: tuple[str, ...]
    build: Callable[[], keras.Model]

    def __repr__(self) -> str:
        return " ".join(self.parts)


_NORMS = {"batch": layers.BatchNormalization, "layer": layers.LayerNormalization,
          "group": lambda: layers.GroupNormalization(2), "instance": lambda: layers.GroupNormalization(-1)}  # fmt: skip
_PARTS = ["conv1", "conv2", "conv3", "conv5", "stride2", "dilated", "transposed", "up", "pool", "mean", "skip", "join", "gate",
          "drop", "noise", "relu", "gelu", "elu", "leaky_relu", *_NORMS]  # fmt: skip


@st.composite
def stacks(draw: Any) -> Stack:
    """Convolutions of any depth with skips, strides, normalisations and activations, in 2D and 3D."""
    rank, planes = draw(st.integers(2, 3)), draw(st.integers(9, 16))
    parts = tuple(draw(st.lists(st.sampled_from(_PARTS), min_size=2, max_size=8)))
    width = 6 if rank == 2 else 4

    def build() -> keras.Model:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((planes, *[width] * (rank - 1), 2))
        x = _layer("Conv", rank)(4, 3, padding="same")(inputs)
        seen = [x]
        for part in parts:
            x = _after(x, part, rank, seen)
            seen.append(x)
        return keras.Model(inputs, _layer("Conv", rank)(2, 1, activation="sigmoid")(x))

    return Stack((f"{rank}D", str(planes), *parts), build)


def _layer(name: str, rank: int, rest: str = "") -> Any:
    return getattr(layers, f"{name}{rank}D{rest}")


def _after(x: Any, part: str, rank: int, seen: Sequence[Any]) -> Any:
    conv = _layer("Conv", rank)
    if part.startswith("conv"):
        return conv(4, int(part[-1]), padding="same")(x)
    if part == "stride2":
        return conv(4, 3, strides=2, padding="same")(x) if min(x.shape[1:-1]) > 2 else x
    if part == "dilated":  # of two planes each phase has one, which cannot be cut: it is joined, and rightly so
        return conv(4, 3, dilation_rate=2, padding="same")(x) if x.shape[1] > 2 else x
    if part in ("transposed", "up"):
        if x.shape[1] > 16:
            return x
        up = _layer("Conv", rank, "Transpose")(4, 3, strides=2, padding="same")
        return up(x) if part == "transposed" else _layer("UpSampling", rank)(2)(x)
    if part in ("pool", "mean"):  # none in float64 for volumes
        kind = "MaxPooling" if part == "pool" else "AveragePooling"
        return _layer(kind, rank)(2)(x) if rank == 2 and min(x.shape[1:-1]) > 2 else x
    if part in ("skip", "join"):
        fitting = [s for s in seen if s.shape == x.shape]
        if len(fitting) < 2 or x.shape[-1] != 4:
            return x
        return (layers.Add() if part == "skip" else layers.Concatenate())([x, fitting[0]])
    if part == "gate":
        return layers.Multiply()(
            [x, conv(1, 1, activation="sigmoid")(_layer("GlobalAveragePooling", rank)(keepdims=True)(x))]
        )
    if part in ("drop", "noise"):
        return (layers.Dropout(0.3, seed=2) if part == "drop" else layers.GaussianNoise(0.1, seed=2))(x)
    return _NORMS[part]()(x) if part in _NORMS else layers.Activation(part)(x)
