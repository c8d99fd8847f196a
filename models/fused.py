"""Instance normalisation, LeakyReLU, channel dropout and addition in as few passes over the volume as the device allows.

FUSED-1 A block reads the convolution's result twice and writes its own result once. The gradient takes four reads and one write.
FUSED-2 The gradient needs the convolution's result and two numbers per channel, but neither the normalised tensor nor the
        activation. The block's result is kept only for the gradient of the next convolution's kernel. If memory is short, LMS
        rematerialises it from the convolution's result by one operation.
FUSED-3 Dropout multiplies a channel by a number that is never negative. The number goes into scale and offset, since
        leaky(m z) = m leaky(z), and costs no pass.

This package does not contain the compiled operations. Another package may offer them under the entry point `models.operations`.
Without them, and within `plain`, TensorFlow's own operations compute the same, to rounding, in more passes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class Operations(Protocol):
    """The six operations of `lms3d/engine/native/src/normalise.cc`, which says what they compute."""

    lms_moments: Callable[..., Any]
    lms_merge: Callable[..., Any]
    lms_activate: Callable[..., Any]
    lms_activate_sums: Callable[..., Any]
    lms_activate_grad: Callable[..., Any]
    lms_parameter_grad: Callable[..., Any]


_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plain() -> Iterator[None]:
    """A block in which networks are built of TensorFlow's own operations, for functions that XLA compiles."""
    before = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(before)


def operations(device: str = "CPU") -> Operations | None:
    """The compiled operations for a "CPU" or "GPU"; None if none work, or within `plain`."""
    return None if _PLAIN.get() else _offered(device)


@functools.cache
def _offered(device: str) -> Operations | None:
    """The operations of the first entry point that offers some. The look-up takes a few milliseconds."""
    offers = (point.load()(device) for point in entry_points(group="models.operations"))
    return next((offer for offer in offers if offer is not None), None)


def in_parts(number: float) -> list[float]:
    """Two numbers in single precision, as attributes of ops are, whose sum in double precision is `number` to fifteen digits."""
    first = float(np.float32(number))
    return [first, float(np.float32(number - first))]


def activate(
    kernels: Operations,
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    *,
    epsilon: float,
    slope: float = 1.0,
    multipliers: tf.Tensor | None = None,
    addend: tf.Tensor | None = None,
) -> tf.Tensor:
    """y = leaky(m (gamma (x - mean) / sqrt(variance + epsilon) + beta)) + addend, in the shape and dtype of x.

    x, addend: (B, D, .., C), of any floating dtype; mean and variance: per sample and channel. gamma, beta: (C,), in
    float32 or float64. multipliers m: (B, C), not negative; no gradient flows to them. slope: that of the negative side, 1 for no
    activation. Half precision is computed in float32. There is no second gradient.
    """
    m = tf.zeros((0,), gamma.dtype) if multipliers is None else tf.stop_gradient(tf.cast(multipliers, gamma.dtype))
    scope = tf.get_current_name_scope()

    @tf.custom_gradient
    def run(
        x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *addend: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[..., Any]]:
        mean, rsigma = kernels.lms_merge(*kernels.lms_moments(x), epsilon=in_parts(epsilon))
        y = kernels.lms_activate(x, mean, rsigma, gamma, beta, m, list(addend), slope=slope)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.name_scope(f"gradient_tape/{scope}"):
                sums = kernels.lms_activate_sums(dy, x, mean, rsigma, gamma, beta, m, slope=slope)
                dx = kernels.lms_activate_grad(dy, x, mean, rsigma, gamma, beta, m, *sums, slope=slope)
                of_parameters = kernels.lms_parameter_grad(*sums, rsigma, m)
            return (dx, *of_parameters, *(dy for _ in addend))

        return y, gradient

    return run(x, gamma, beta, *([] if addend is None else [addend]))
