"""Volumes that come into a traced step, or leave it, plane by plane: a function of Python's gives or takes the planes.

    read(planes, ..) --> network --> write(planes, ..) --> number of planes

As a whole step, each is called once, with all planes. In slabs each is called slab by slab (`engine.slabs.rules.streams`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from lms3d.engine.slabs import streams

Read = Callable[[int, int], np.ndarray]
"""first, end -> these planes of a volume along its first axis, (end - first, B, C, channels) float32."""

Write = Callable[[int, np.ndarray], None]
"""first, planes (n, B, C, channels) -> keeps them. To write the same planes twice changes nothing."""


START = tf.TensorSpec((), tf.int32)
"""The argument of a function that reads: any number."""


def read(planes: Read, shape: Sequence[int], start: tf.Tensor) -> tf.Tensor:
    """The volume (1, A, B, C, channels) float32 in the graph that is being traced. shape: (A, B, C, channels).

    start: an argument of the function. Without it TensorFlow would take the volume for a constant, and read and keep it before the
    function runs.
    """

    def call(first: np.int32, end: np.int32, start: np.int32) -> np.ndarray:
        return np.ascontiguousarray(planes(int(first), int(end))[np.newaxis], np.float32)

    made = tf.numpy_function(call, [np.int32(0), np.int32(shape[0]), start], tf.float32, stateful=False)
    made.set_shape((1, *shape))
    streams.READERS.add(_token(made))
    return made


def write(volume: tf.Tensor, planes: Write) -> tf.Tensor:
    """The number of planes () int32 of a volume (1, A, B, C, channels), once all of them are written."""

    def call(part: np.ndarray, first: np.int32) -> np.int32:
        planes(int(first), part[0])
        return np.int32(part.shape[1])

    made = tf.numpy_function(call, [volume, np.int32(0)], tf.int32, stateful=False)
    made.set_shape(())
    streams.WRITERS.add(_token(made))
    return made


def _token(made: tf.Tensor) -> str:
    token: bytes = made.op.get_attr("token")
    return token.decode()
