"""Random functions for the tests of the tiers; `tests.stress.functions` has more kinds, with state, under every planner."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import tensorflow as tf
from hypothesis import strategies as st

from lms3d.engine.cost import Machine
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture

SPEC = tf.TensorSpec((2, 16, 16, 256), tf.float32)  # 512 KiB: limits are whole MiB


@cache
def kernel() -> tf.Tensor:
    """Made at first use: while tests are collected, nothing may take memory that others measure."""
    with tf.init_scope():
        return tf.constant(0.01, shape=(3, 3, 256, 256))


UNARY: dict[str, Callable] = {
    "tanh": tf.tanh,
    "relu": tf.nn.leaky_relu,
    "convolution": lambda t: tf.nn.conv2d(t, kernel(), 1, "SAME"),
    "matmul": lambda t: tf.matmul(t, kernel()[0, 0]),
    "there and back": lambda t: tf.reshape(tf.reshape(t, (512, 256)), (2, 16, 16, 256)),
    "identity": tf.identity,
    "halves": lambda t: tf.concat([tf.slice(t, [i, 0, 0, 0], [1, -1, -1, -1]) for i in (1, 0)], 0),  # two views
    "same axes": lambda t: tf.transpose(t, (0, 1, 2, 3)),  # passes the buffer on
    "normalise": lambda t: (
        tf.raw_ops.FusedBatchNormV3(
            x=t, scale=tf.ones(256), offset=tf.zeros(256), mean=[], variance=[], is_training=True
        ).y
    ),
}
BINARY: dict[str, Callable] = {
    "add": tf.add,
    "multiply": tf.multiply,
    "concat": lambda a, b: tf.concat([a, b], -1)[..., ::2],
}
nodes = st.one_of(
    st.tuples(st.sampled_from(sorted(UNARY)), st.integers(1, 3)),
    st.tuples(st.sampled_from(sorted(BINARY)), st.integers(1, 3), st.integers(1, 20)),
)
networks = st.tuples(st.lists(nodes, min_size=4, max_size=16), st.booleans())


def function_of(network) -> Callable:
    """Each node reads the result of so many nodes before; optionally with the gradient of it all."""
    recipe, with_gradient = network

    def function(x: tf.Tensor) -> list[tf.Tensor]:
        made = [x]
        for name, *back in recipe:
            inputs = [made[-min(b, len(made))] for b in back]
            made.append((UNARY | BINARY)[name](*inputs))
        loss = tf.reduce_mean(tf.tanh(made[-1]))
        return [made[-1], made[len(made) // 2][0, :4], loss, *(tf.gradients(loss, x) if with_gradient else [])]

    return function


def test_these_networks_give_the_planner_something_to_do():
    network = ([(name, 1) for name in ("convolution", "tanh", "relu") * 4] + [("add", 1, 12)], True)
    graph = capture(functions.trace(function_of(network), SPEC))
    _, report = make_plan(Settings(limit_bytes=1 << 40).request(graph, Machine()))
    plan, _ = make_plan(Settings(limit_bytes=report.floor_bytes).request(graph, Machine()))
    assert plan.swap_outs or plan.recomputes
