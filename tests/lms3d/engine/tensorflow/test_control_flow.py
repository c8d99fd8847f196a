"""Branches, loops, calls and unknown shapes inside of a function: skipped cleanly, results unchanged."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lms3d.engine.tensorflow import functions
from tests.lms3d.engine.traced import SPEC, batch, by_tflms, same_bits


def around(middle):
    """`a`, then what `middle` makes of it, then a far consumer of `a`."""

    def function(x: tf.Tensor) -> tf.Tensor:
        a = tf.tanh(x, name="a")
        f = middle(a)
        for _ in range(6):
            f = tf.sin(f)
        return tf.add(f, a, name="z")

    return function


def conditional(a: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_sum(a) > 0, lambda: tf.cos(a), lambda: tf.exp(a))


def loop(a: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.cos(y) + a), (0, a))[1]


def call(a: tf.Tensor) -> tf.Tensor:
    return tf.function(lambda y: tf.cos(y) * y, autograph=False)(a)


@pytest.mark.parametrize("middle", [conditional, loop, call])
def test_functional_control_flow(middle, tier):
    function = around(middle)
    expected = [functions.trace(function, SPEC)(batch(s)) for s in range(2)]
    made = by_tflms(function, tier)
    assert made.plan.swap_outs[0].tensor == "a:0"
    assert made.plan.swap_ins[0].consumers == ("z",)
    for seed in range(2):
        same_bits(made.function(batch(seed)), expected[seed])


@pytest.mark.parametrize("shape", [(None, 32), None])
def test_unknown_shapes_are_left_alone(shape, tier):
    spec = tf.TensorSpec(shape, tf.float32)
    made = by_tflms(around(tf.cos), tier, spec)
    assert made.plan.empty
    same_bits(made.function(batch()), functions.trace(around(tf.cos), SPEC)(batch()))


def test_one_unknown_shape_among_known_ones(tier):
    def function(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        unknown = tf.boolean_mask(x, x[:, 0] > 0)
        a = tf.tanh(x, name="a")
        f = a
        for _ in range(6):
            f = tf.sin(f)
            unknown = tf.cos(unknown)
        return tf.add(f, a), unknown

    made = by_tflms(function, tier)
    assert [s.tensor for s in made.plan.swap_outs] == ["a:0"]
    same_bits(made.function(batch()), functions.trace(function, SPEC)(batch()))
