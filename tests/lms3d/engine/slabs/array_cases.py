"""Cases of ops that move elements: shapes, parts, repetitions, reductions, counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tests.lms3d.engine.slabs.cases import Body, Case, Space, spaces

R = tf.raw_ops
RANKS = st.integers(2, 3)


@st.composite
def of(draw: Any, body: Body, **rest: Any) -> tuple[Space, Body]:
    return draw(spaces(draw(RANKS), **rest)), body


def _with(space: Space, **changed: Any) -> Space:
    return Space(**{**vars(space), **changed})


def repetitions(x: tf.Tensor) -> list[tf.Tensor]:
    channel, rows, once = tf.reduce_mean(x, [0, 1], keepdims=True), tf.reduce_sum(x, 0, keepdims=True), x[:, :1]
    one = tf.reduce_sum(x)
    more = [1] * (len(x.shape) - 1) + [2]
    down = [1, x.shape[1], *[1] * (len(x.shape) - 2)]
    return [
        R.Fill(dims=x.shape, value=one) * x,
        R.BroadcastTo(input=channel, shape=x.shape) * x,
        R.BroadcastTo(input=rows, shape=x.shape) * x,
        R.Tile(input=x, multiples=more),
        R.Tile(input=tf.reduce_sum(once, 0, keepdims=True) * tf.ones_like(once), multiples=down) * x,
    ]


def repeated(x: tf.Tensor) -> list[tf.Tensor]:
    """As Keras up-samples."""
    for axis in range(1, len(x.shape) - 1):
        x = tf.repeat(x, 2, axis=axis)
    return [x]


def joined(x: tf.Tensor) -> list[tf.Tensor]:
    other, rank = tf.square(x), len(x.shape)
    stacked = R.Pack(values=[x, other], axis=rank - 1)
    wide = R.ConcatV2(values=[x, other, x], axis=-1)
    first, second = R.Unpack(value=stacked, num=2, axis=rank - 1)
    halves = R.Split(axis=rank - 1, value=wide, num_split=3)
    parts = R.SplitV(value=wide, size_splits=[x.shape[-1], 2 * x.shape[-1]], axis=rank - 1, num_split=2)
    samples = R.Unpack(value=x, num=x.shape[0], axis=0)
    before = R.Pack(values=[other, x], axis=0)
    return [stacked * 2.0, wide, first + second, *halves, *parts, *samples, before[1] - before[0]]


@st.composite
def parts(draw: Any) -> tuple[Space, Body]:
    space = draw(spaces(draw(RANKS), planes=(7, 13)))
    start, stop = draw(st.integers(0, 3)), draw(st.integers(4, space.planes))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))

    def body(x: tf.Tensor) -> list[tf.Tensor]:
        rank = len(x.shape)
        size = [-1, stop - start, *[2] * (rank - 3), 1]
        pads = [[0, 0], [before, after], *[[1, 0]] * (rank - 2)]
        return [
            R.Slice(input=x, begin=[0, start, *[0] * (rank - 2)], size=size),
            x[:, start:stop],
            x[..., 0],
            x[:, :, 1:, ..., :1],
            x[:, :, ::2],
            x[0],
            R.Pad(input=x, paddings=pads),
            R.PadV2(input=x, paddings=pads, constant_values=tf.constant(2, x.dtype)),
        ]

    return space, body


def reshaped(x: tf.Tensor) -> list[tf.Tensor]:
    batch, planes, *_ = x.shape
    rank, channels = len(x.shape), x.shape[-1]
    rows = R.Reshape(tensor=x, shape=[-1, channels])
    back = R.Reshape(tensor=tf.square(rows), shape=x.shape)
    return [
        rows * 2.0,
        back,
        R.Reshape(tensor=x, shape=[batch, planes, -1]) * 2.0,
        R.Squeeze(input=R.ExpandDims(input=x, axis=2) * 2.0, axis=[2]),
        R.ExpandDims(input=x, axis=0) * 2.0,
        R.Transpose(x=x, perm=[0, *range(rank - 1, 0, -1)]) * 2.0,
        R.Transpose(x=x, perm=[1, 0, *range(2, rank)]) * 2.0,
        R.Shape(input=x), *R.ShapeN(input=[x, rows]), R.Size(input=x), R.Rank(input=x),
    ]  # fmt: skip


def reduced(x: tf.Tensor) -> list[tf.Tensor]:
    results, spatial, last = [], list(range(1, len(x.shape) - 1)), [len(x.shape) - 1]
    for kind in (R.Sum, R.Mean, R.Max, R.Min, R.Prod):
        x = tf.stop_gradient(x) if kind is R.Prod else x  # whose gradient moves the axes
        for axes in (spatial, last, [0], [*spatial, *last, 0], [-1, 1]):
            for keep in (True, False):
                results.append(kind(input=x, axis=axes, keep_dims=keep))
    yes = x > 0.3
    counts = [kind(input=yes, axis=axes, keep_dims=False) for kind in (R.All, R.Any) for axes in (spatial, last, [0])]
    return [
        *results, *counts,
        R.L2Loss(t=x),
        R.ArgMax(input=x, dimension=len(x.shape) - 1),
        R.ArgMin(input=x, dimension=0),
        R.Cumsum(x=x, axis=-1),
        R.Cumprod(x=x, axis=2, reverse=True),
    ]  # fmt: skip


def bias(x: tf.Tensor) -> list[tf.Tensor]:
    flat = x if len(x.shape) == 4 else tf.reshape(x, (*x.shape[:3], -1))
    b = tf.range(flat.shape[-1], dtype=x.dtype)
    with tf.GradientTape() as tape:
        tape.watch(b)
        y = R.BiasAdd(value=flat, bias=b)
        loss = tf.reduce_sum(tf.square(y))
    return [y, tape.gradient(loss, b)]


def counted(x: tf.Tensor) -> list[tf.Tensor]:
    """As accuracies, curves and confusion matrices do: none has a gradient."""
    x = tf.stop_gradient(x)
    classes = R.ArgMax(input=x, dimension=-1)
    hot = R.OneHot(
        indices=classes, depth=3, on_value=tf.constant(1, x.dtype), off_value=tf.constant(0, x.dtype), axis=-1
    )
    numbers = tf.cast(tf.reshape(x, [-1]) * 5, tf.int32)
    pairs = tf.stack([numbers, numbers // 2], axis=1)
    return [
        hot,
        R.UnsortedSegmentSum(data=tf.reshape(x, [-1]), segment_ids=numbers, num_segments=6),
        R.ScatterNd(indices=pairs, updates=tf.reshape(tf.square(x), [-1]), shape=[6, 6]),
        R.GatherV2(params=x, indices=[0, 0], axis=-1),
    ]


def multiplied(x: tf.Tensor) -> list[tf.Tensor]:
    channels = x.shape[-1]
    matrix = tf.constant(np.random.default_rng(3).normal(size=(channels, 2)), x.dtype)
    letters = "abcde"[: len(x.shape) - 1]
    results = []
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(matrix)
        rows = R.MatMul(a=tf.reshape(x, [-1, channels]), b=matrix)
        batches = R.BatchMatMulV2(x=x, y=matrix)
        summed = tf.einsum(f"{letters}x,xy->{letters}y", x, matrix)
        results = [rows, batches, summed]
        losses = [tf.reduce_sum(tf.square(r)) for r in results]
    return [*results, *(tape.gradient(loss, matrix) for loss in losses)]


def _case(name: str, types: str, settings: Any, **rest: Any) -> Case:
    return Case(name=name, types=frozenset(types.split()), settings=settings, **rest)


CASES = [
    _case("repetitions", "Fill BroadcastTo Tile", of(repetitions)),
    _case("repeated", "Tile Reshape", of(repeated)),
    _case("joined", "ConcatV2 Pack Split SplitV Unpack", of(joined)),
    _case("parts", "Slice StridedSlice StridedSliceGrad Pad PadV2", parts()),
    _case("reshaped", "Reshape ExpandDims Squeeze Transpose Shape ShapeN Size Rank", of(reshaped)),
    _case("reduced", "Sum Mean Max Min Prod All Any L2Loss ArgMax ArgMin Cumsum Cumprod", of(reduced)),
    _case("bias", "BiasAdd BiasAddGrad", of(bias)),
    _case("counted", "OneHot UnsortedSegmentSum ScatterNd GatherV2", of(counted)),
    _case("multiplied", "MatMul BatchMatMulV2 Einsum", of(multiplied), joins=frozenset({"Sum"})),
]
