"""isensee2017 as the case study ran it in 2018: D. Ellis's Keras code, on the layers of its time.

    ours (`lms3d.models.isensee2017`)       here
    JoinedConv3D                      UpSampling3D, Concatenate, Conv3D: each makes a tensor of full size
    NearestUpSampling3D               UpSampling3D
    InstanceNormalization             keras_contrib's: mean; deviation, with a mean of its own; subtract, divide, scale, shift
    .. its LeakyReLU                  Keras 2's before 2.2.3: relu(x) - slope relu(-x)
    .. its dropout, its addition      SpatialDropout3D, Add
    a bias that is not added          an added one

Weights and results are the same, tensors are about twice as many.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import keras
import tensorflow as tf

from lms3d import models
from lms3d.models import isensee2017

_AXES = (1, 2, 3)
_EPSILON = 1e-3


class UnfusedNormalization(keras.layers.Layer):
    """(x - mean) / (sigma + epsilon) gamma + beta, op by op: (B, D, H, W, C) -> the same shape."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = (1, 1, 1, 1, input_shape[-1])
        self.gamma = self.add_weight(shape=shape, initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=shape, initializer="zeros", name="beta")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        mean, again = (tf.reduce_mean(inputs, axis=_AXES, keepdims=True) for _ in range(2))
        variance = tf.reduce_mean(tf.square(inputs - again), axis=_AXES, keepdims=True)
        return (inputs - mean) / (tf.sqrt(variance) + _EPSILON) * self.gamma + self.beta


class TwoSidedLeakyReLU(keras.layers.Layer):
    """relu(x) - slope relu(-x)."""

    def __init__(self, negative_slope: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.negative_slope = negative_slope

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(inputs) - self.negative_slope * tf.nn.relu(-inputs)


class _Joined:
    """Up-sampling, concatenation and convolution, one after the other: what `lms3d.models.layers.JoinedConv3D` avoids."""

    def __init__(self, filters: int, raised: tuple[bool, ...], name: str, adds_bias: bool = True) -> None:
        self.filters, self.raised, self.name = filters, raised, name

    def __call__(self, inputs: list[keras.KerasTensor]) -> keras.KerasTensor:
        parts = [_raised()(x) if raised else x for x, raised in zip(inputs, self.raised, strict=True)]
        together = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
        return keras.layers.Conv3D(self.filters, 3, padding="same", name=self.name)(together)


def _raised(name: str | None = None) -> keras.layers.Layer:
    return keras.layers.UpSampling3D(2, name=name)


def _normalise(
    x: keras.KerasTensor, name: str, *, dropout: float | None = None, addend: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    x = UnfusedNormalization(name=f"{name}_norm")(x)
    x = TwoSidedLeakyReLU(negative_slope=isensee2017.LEAKY_SLOPE, name=f"{name}_relu")(x)
    x = x if dropout is None else keras.layers.SpatialDropout3D(dropout, name=f"{name}_dropout")(x)
    return x if addend is None else keras.layers.Add(name=f"{name}_add")([addend, x])


def build(input_shape: tuple[int, ...]) -> keras.Model:
    """(1, D, H, W, 4) images -> (1, D, H, W, 3) probabilities; `lms3d.models.isensee2017` draws it, with other layers."""
    parts = {
        "Conv3D": keras.layers.Conv3D, "JoinedConv3D": _Joined, "NearestUpSampling3D": _raised, "_normalise": _normalise,
    }  # fmt: skip
    with mock.patch.multiple(isensee2017, **parts):
        return models.build("isensee2017", input_shape=input_shape)
