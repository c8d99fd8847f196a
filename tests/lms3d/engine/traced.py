"""Small TensorFlow functions, traced and rewritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from lms3d.engine.ir import StepGraph
from lms3d.engine.passes import manager
from lms3d.engine.passes.guard import Guard
from lms3d.engine.passes.rewrite import Rewrite, Rewriting
from lms3d.engine.plan import Plan
from lms3d.engine.planners import tflms
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture

SPEC = tf.TensorSpec((64, 32), tf.float32)
SIZE = 32
IMAGE = tf.TensorSpec((1, SIZE, SIZE, SIZE, 4))
PARAMETERS = tflms.Parameters(swapout_threshold=4, swapin_ahead=1, swapin_groupby=0, sync_mode=0)


@dataclass
class Rewritten:
    """A function before and after, with the plan between them."""

    original: Any
    function: Any
    before: StepGraph
    plan: Plan
    change: Rewriting

    def op(self, name: str) -> tf.Operation:
        return self.function.graph.get_operation_by_name(name)


def batch(seed: int = 0, spec: tf.TensorSpec = SPEC) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=spec.shape).astype(np.float32))


def by_tflms(
    function: Callable, tier: Any, *specs: Any, parameters: tflms.Parameters = PARAMETERS, mapped: bool = False
) -> Rewritten:
    """`function` traced for `specs` and rewritten with a TFLMS plan."""
    original = functions.trace(function, *(specs or (SPEC,)))
    graph = capture(original)
    plan = tflms.build(graph, parameters, mapped=mapped)
    return Rewritten(original, *_swap(rewrite(original, graph, plan, tier), graph, plan))


def rewrite(function: Any, graph: StepGraph, plan: Plan, tier: Any) -> tuple[Any, Rewriting]:
    """The function with the plan's nodes, and what changed."""
    rewriting = Rewrite(graph, plan, tier)
    manager.run(function, [rewriting])
    return functions.make_function(function), rewriting.change


def with_guards(function: Any, *, planned: bool) -> tuple[Any, int]:
    """The function with guards, and how many there are."""
    guard = Guard(planned=planned)
    manager.run(function, [guard])
    return functions.make_function(function), guard.count


def _swap(made: tuple[Any, Rewriting], graph: StepGraph, plan: Plan) -> tuple[Any, StepGraph, Plan, Rewriting]:
    return made[0], graph, plan, made[1]


def chain(x: tf.Tensor) -> tf.Tensor:
    """The worked example of TFLMS."""
    a = tf.tanh(x, name="a")
    f = a
    for i in range(1, 5):
        f = tf.sin(f, name=f"f{i}")
    return tf.add(f, a, name="z")


def fork(x: tf.Tensor) -> tf.Tensor:
    """`a` is read near, far and farther."""
    a = tf.tanh(x, name="a")
    f = tf.cos(a, name="near")
    for i in range(1, 13):
        f = tf.sin(f, name=f"f{i}")
        if i in (6, 8, 12):
            f = tf.add(f, a, name=f"z{i}")
    return f


def splits(x: tf.Tensor) -> tf.Tensor:
    """TensorFlow calls the second op `split_1`, which is also how one would write the second output of the first."""
    first = tf.split(x, 2, name="split")
    middle = tf.add(tf.sin(first[0]), tf.cos(first[1]), name="middle")
    second = tf.split(middle, 2, name="split")
    after = tf.tile(tf.add(tf.sin(second[0]), tf.cos(second[1]), name="after"), (2, 1))
    return tf.concat([tf.multiply(after, first[1], name="z"), tf.multiply(second[0], second[1], name="z1")], 0)


def u_net(x: tf.Tensor) -> tf.Tensor:
    """Long skips from encoder to decoder, with gradients."""
    skips, y = [], x
    for _ in range(3):
        y = tf.nn.leaky_relu(tf.matmul(y, tf.ones((32, 32)) / 32))
        skips.append(y)
    for skip in reversed(skips):
        y = tf.concat([y, skip], -1)
        y = tf.nn.leaky_relu(tf.matmul(y, tf.ones((64, 32)) / 64))
    (gradient,) = tf.gradients(tf.reduce_sum(tf.square(y)), x)
    return gradient


def convolution_step(x: tf.Tensor) -> tf.Tensor:
    """Takes an `IMAGE`: forward pass, gradients, a reduction with an argument, and an op that must not run alone."""
    kernel = tf.random.stateless_normal((3, 3, 3, 4, 8), (1, 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.relu(tf.nn.conv3d(x, kernel, [1] * 5, "SAME"))
        y = tf.nn.max_pool3d(y, 2, 2, "VALID") * tf.random.uniform(())
        loss = tf.reduce_sum(y * y)
    return tape.gradient(loss, x)


def of_type(function: Any, op_type: str) -> tf.Operation:
    """The first op of that type."""
    return next(op for op in function.graph.get_operations() if op.type == op_type)


def same_bits(found: Any, expected: Any) -> None:
    """Every tensor of two nests is equal to the last bit."""
    pairs = list(zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True))
    assert all(np.asarray(f).tobytes() == np.asarray(e).tobytes() for f, e in pairs)
