"""Cases of ops that work on each element, or on the channels of each voxel."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from lms3d.engine.slabs.rules import elementwise
from lms3d.models import fused
from tests.lms3d.engine.slabs.cases import Body, Case, Space, spaces

R = tf.raw_ops
UNARY = frozenset(elementwise._UNARY)
BINARY = frozenset(elementwise._BINARY)
GRADIENTS = frozenset(elementwise._GRADIENTS)
_INTEGERS = frozenset(
    [
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "LeftShift",
        "RightShift",
        "TruncateDiv",
        "TruncateMod",
        "Mod",
        "FloorMod",
    ]
)
_BOOLEANS = frozenset({"LogicalAnd", "LogicalOr"})


@st.composite
def of(draw: Any, body: Body) -> tuple[Space, Body]:
    return draw(spaces(draw(st.integers(2, 3)))), body


def unary(x: tf.Tensor) -> list[tf.Tensor]:
    results = []
    for kind in sorted(UNARY):
        if kind == "Cast":
            results.append(R.Cast(x=x * 7, DstT=tf.int32))
        elif kind == "Bitcast":
            results.append(R.Bitcast(input=x, type=tf.int64))
        elif kind == "LogicalNot":
            results.append(R.LogicalNot(x=x > 0.5))
        elif kind == "ClipByValue":
            least, most = (tf.constant(n, x.dtype) for n in (0.3, 0.6))
            results.append(R.ClipByValue(t=x, clip_value_min=least, clip_value_max=most))
        else:
            raw = getattr(R, kind)
            name = _names(raw)[0]
            results.append(raw(**{name: x + 1 if kind == "Acosh" else x}))
    return results


def _names(raw: Any) -> list[str]:
    return list(inspect.signature(raw).parameters)


def binary(given: tf.Tensor) -> list[tf.Tensor]:
    """With a tensor of the same shape, one value per channel, one per sample, or one number."""
    channels = tf.constant(np.linspace(0.2, 0.7, given.shape[-1]), given.dtype)
    samples = tf.reduce_mean(given, list(range(1, len(given.shape))), keepdims=True)
    results = []
    for i, kind in enumerate(sorted(BINARY | GRADIENTS)):
        raw, broadcasts = getattr(R, kind), kind in BINARY
        x = given if broadcasts else tf.stop_gradient(given)  # not all gradients have one
        others = [tf.sqrt(x), *((channels, samples, tf.constant(0.4, x.dtype)) if broadcasts else ())]
        if kind == "AddN":
            results.append(R.AddN(inputs=[x, others[0], x]))
        elif kind in ("Select", "SelectV2"):
            results.append(raw(**dict(zip(_names(raw), (x > 0.5, x, others[0]), strict=False))))
        elif kind == "Complex":
            results.append(R.Complex(real=x, imag=others[0], Tout=tf.complex128))
        elif kind in ("ApproximateEqual", "NextAfter"):
            results.append(raw(**dict(zip(_names(raw), (x, others[0]), strict=False))))
        else:
            if kind in ("TruncateDiv", "Div"):
                others = others[:1]
            other = others[i % len(others)]
            results.append(raw(**dict(zip(_names(raw), _typed(kind, x, other), strict=False))))
    return results


def _typed(kind: str, x: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    if kind in _INTEGERS:
        return tf.cast(x * 50, tf.int32), tf.cast(other * 5 + 1, tf.int32)
    if kind in _BOOLEANS:
        return x > 0.5, other > 0.5
    return x, other


def aliases(x: tf.Tensor) -> list[tf.Tensor]:
    first, second = R.IdentityN(input=[x, tf.square(x)])
    return [
        R.Identity(input=first) * 2.0, R.StopGradient(input=x) * x, R.PreventGradient(input=tf.stop_gradient(x)) * x,
        R.EnsureShape(input=second, shape=x.shape) * x, R.Snapshot(input=tf.stop_gradient(x)) * x,
    ]  # fmt: skip


def per_voxel(x: tf.Tensor) -> list[tf.Tensor]:
    logits = tf.concat([x, 1 - x], -1)
    rows = tf.reshape(logits, [-1, logits.shape[-1]])
    labels = tf.nn.softmax(rows * 3)
    hard = tf.argmax(labels, axis=-1)
    loss, slope = R.SoftmaxCrossEntropyWithLogits(features=rows, labels=tf.stop_gradient(labels))
    sparse, sparse_slope = R.SparseSoftmaxCrossEntropyWithLogits(features=rows, labels=hard)
    best, where = R.TopKV2(input=logits, k=2)
    among = R.InTopKV2(
        predictions=tf.cast(tf.stop_gradient(rows), tf.float32), targets=hard, k=tf.constant(1, tf.int64)
    )
    return [
        R.Softmax(logits=rows), R.LogSoftmax(logits=rows), loss, tf.stop_gradient(slope), sparse, tf.stop_gradient(sparse_slope),
        best, where, among,
    ]  # fmt: skip


def fused_block(x: tf.Tensor) -> list[tf.Tensor]:
    """Normalisation, LeakyReLU, dropout and an addition, and normalisation alone."""
    gamma, beta = (tf.reduce_mean(x * factor, list(range(len(x.shape) - 1))) for factor in (2.0, -1.0))
    multipliers = tf.constant(np.random.default_rng(0).choice([0.0, 1.5], (x.shape[0], x.shape[-1])), x.dtype)
    kernels = fused.operations()
    assert kernels is not None
    y = fused.activate(kernels, x, gamma, beta, epsilon=1e-3, slope=0.3, multipliers=multipliers, addend=tf.square(x))
    return [y, fused.activate(kernels, y, gamma, beta, epsilon=1e-3)]


def _case(name: str, types: str | frozenset[str], settings: Any, **rest: Any) -> Case:
    return Case(
        name=name, types=frozenset(types.split()) if isinstance(types, str) else types, settings=settings, **rest
    )


CASES = [
    _case("unary", UNARY, of(unary)),
    _case("binary", BINARY | GRADIENTS, of(binary)),
    _case(
        "fused block",
        "LmsMoments LmsMerge LmsActivate LmsActivateSums LmsActivateGrad LmsParameterGrad",
        of(fused_block),
    ),
    _case("aliases", "Identity IdentityN StopGradient PreventGradient EnsureShape Snapshot", of(aliases)),
    _case(
        "per voxel",
        "Softmax LogSoftmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits TopKV2 InTopKV2",
        of(per_voxel),
    ),
]
