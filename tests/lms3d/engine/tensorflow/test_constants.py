"""Constants in branches, loops and calls lie on the device throughout the step."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lms3d.engine.tensorflow import constants, functions
from lms3d.engine.tensorflow.capture import capture, held_bytes

SPEC = tf.TensorSpec((256, 1024))  # 1 MiB
MIB = 1 << 20


def perhaps(other):
    return lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x), lambda: other(x))


@tf.function(autograph=False, jit_compile=False)
def shifted(x: tf.Tensor) -> tf.Tensor:
    return x + tf.fill(SPEC.shape, 2.0)


STEPS = {
    "zeros that a branch returns": (perhaps(tf.zeros_like), 1),
    "one constant made of others": (perhaps(lambda x: tf.sin(tf.fill(SPEC.shape, 2.0)) * tf.zeros(SPEC.shape)), 1),
    "a constant that is read, and one made of it": (perhaps(lambda x: (a := tf.ones(SPEC.shape)) * x + tf.sin(a)), 2),
    "a call within a branch": (perhaps(shifted), 1),
    "the body of a loop": (lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, shifted(y)), (0, x)), 1),
    "two calls": (lambda x: shifted(tf.sin(shifted(x))), 2),
    "a constant that nobody needs": (perhaps(lambda x: (tf.zeros_like(x), x)[1]), 0),
    "no constant": (perhaps(tf.cos), 0),
    "random numbers": (perhaps(lambda x: tf.random.normal(SPEC.shape)), 0),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_functions_hold_throughout_the_step(name):
    step, mib = STEPS[name]
    resident = capture(functions.trace(step, SPEC)).resident_bytes - MIB  # the argument
    assert mib * MIB <= resident < mib * MIB + 4096


def test_constants_of_the_step_itself_count_while_they_are_read():
    step = capture(functions.trace(lambda x: x + tf.fill(SPEC.shape, 2.0), SPEC))
    assert step.resident_bytes == MIB
    assert MIB in [t.bytes for op in step.ops if op.type == "Fill" for t in op.outputs]


def test_constants_take_no_memory_while_a_function_runs():
    function = functions.trace(lambda x: tf.reduce_sum(x * tf.fill(SPEC.shape, 2.0)), SPEC)
    assert MIB <= held_bytes(function.graph) < 2 * MIB  # the product


def test_what_follows_from_an_argument_is_no_constant():
    graph = functions.trace(lambda x: (tf.zeros(tf.shape(x)), x * tf.zeros(SPEC.shape)), SPEC).graph
    names = constants.folded(graph)
    assert {"zeros"} <= names
    assert "mul" not in names
    assert "x" not in names
