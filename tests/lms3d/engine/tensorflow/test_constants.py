"""What TensorFlow computes once lies on the device throughout the step: in branches, loops and calls, and in the step itself."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lms3d.device import memory
from lms3d.engine.cost import Machine
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import constants, functions
from lms3d.engine.tensorflow.capture import capture, held_bytes
from lms3d.engine.tiers.disk import DiskTier
from tests.lms3d.engine.traced import rewrite

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


def filled(value: float = 2.0, rows: int = 256) -> tf.Tensor:
    return tf.fill((rows, 1024), value)


def late(x: tf.Tensor) -> tf.Tensor:
    """Two equal constants, of which one waits for another op."""
    y = tf.sin(x)
    with tf.control_dependencies([y.op]):
        after = filled()
    return tf.sin(y * after) * filled()


NUMBERS = np.random.default_rng(0).uniform(size=SPEC.shape).astype(np.float32)

# What TensorFlow itself keeps of each step, in MiB.
KEPT = {
    "nothing": (lambda x: tf.sin(x), 0),
    "zeros": (lambda x: x * filled(0.0), 1),
    "numbers of a user": (lambda x: x * tf.constant(NUMBERS), 1),
    "the last of a chain": (lambda x: x * tf.sin(filled() + 1.0), 1),
    "a constant that is read, and one made of it": (lambda x: (a := filled()) * x + tf.sin(a), 2),
    "equal ones": (lambda x: tf.sin(x * filled()) * filled(), 1),
    "different ones": (lambda x: tf.sin(x * filled()) * filled(3.0), 2),
    "equal ones that wait for different ops": (late, 2),
    "returned": (lambda x: (tf.sin(x), filled()), 1),
    "random numbers of a known seed": (lambda x: x * tf.random.stateless_normal(SPEC.shape, (1, 2)), 0),
    "made of one that is too large": (lambda x: x * filled(rows=11 * 256)[:256], 1),
    "too large, and read whole": (lambda x: tf.tile(x, (11, 1)) * filled(rows=11 * 256), 0),
    "read by one that is too large": (lambda x: tf.tile(x, (11, 1)) * tf.tile(filled(), (11, 1)), 0),
}


def kept(step: Callable[[tf.Tensor], Any]) -> int:
    """The bytes that stay in use after a first call.

    TensorFlow gives away whole holes of up to twice the size, which earlier tests have left. So several functions are called, and
    kept: the first of them fill the holes.
    """
    alive, found = [], []
    x = tf.ones(SPEC.shape)
    gc.collect()  # what earlier tests have left
    for _ in range(5):
        alive.append(functions.make_function(functions.trace(step, SPEC)))
        before = memory.bytes_in_use("current", "CPU:0")
        tf.nest.map_structure(lambda t: t.numpy().size, alive[-1](x))
        after = memory.bytes_in_use("current", "CPU:0")
        assert before is not None
        assert after is not None
        found.append(after - before)
    return min(found)


@pytest.mark.parametrize("name", KEPT)
def test_what_the_step_itself_holds_throughout(name):
    step, mib = KEPT[name]
    counted = capture(functions.trace(step, SPEC)).resident_bytes - MIB  # the argument
    assert mib * MIB <= counted < mib * MIB + 4096
    assert counted == pytest.approx(kept(step), abs=64 << 10)


def test_ops_that_become_constants_are_constants_of_the_step():
    step = capture(functions.trace(lambda x: x * tf.sin(filled()), SPEC))
    assert {op.type for op in step.ops if MIB in [t.bytes for t in op.outputs]} == {
        "Placeholder",
        "Const",
        "Mul",
        "Identity",
    }


def test_a_constant_that_is_too_large_is_made_in_each_step():
    step = capture(functions.trace(KEPT["too large, and read whole"][0], SPEC))
    assert "Fill" in {op.type for op in step.ops}


def test_constants_take_no_memory_while_a_function_runs():
    function = functions.trace(lambda x: tf.reduce_sum(x * tf.fill(SPEC.shape, 2.0)), SPEC)
    assert MIB <= held_bytes(function.graph) < 2 * MIB  # the product


def test_what_follows_from_an_argument_is_no_constant():
    graph = functions.trace(lambda x: (tf.zeros(tf.shape(x)), x * tf.zeros(SPEC.shape)), SPEC).graph
    names = constants.Folded(graph.get_operations()).names
    assert {"zeros"} <= names
    assert "mul" not in names
    assert "x" not in names


# -- a step whose gradient has constants -----------------------------------------------------------------------------------


def messages(x: tf.Tensor) -> tf.Tensor:
    """Sums over groups of rows, whose gradient is full of zeros and ones."""
    groups, first = tf.constant(np.arange(SPEC.shape[0]) % 16), x
    for _ in range(6):
        summed = tf.math.unsorted_segment_sum(tf.nn.softmax(x), groups, 16)
        x = x + tf.gather(summed, groups)
    return tf.gradients(x, first)[0]


def in_part_of_the_memory(folder: Path) -> tuple[int, int, int]:
    """Limit, and predicted and measured peak, above the bytes in use before."""
    function = functions.trace(messages, SPEC)
    graph = capture(function)
    _, report = make_plan(Settings(limit_bytes=1 << 40).request(graph, Machine()))
    limit = (report.floor_bytes + report.unedited_limit_bytes) // 2
    plan, report = make_plan(Settings(limit_bytes=limit).request(graph, Machine()))
    assert plan.swap_outs or plan.recomputes
    tier, x = DiskTier(folder), tf.random.stateless_normal(SPEC.shape, (1, 2))
    before = memory.bytes_in_use("current", "CPU:0") or 0
    made, _ = rewrite(function, graph, plan, tier)
    peaks = []
    for _ in range(10):  # the smallest, since a busy machine writes late
        tf.config.experimental.reset_memory_stats("CPU:0")
        made(x)
        peaks.append(memory.bytes_in_use("peak", "CPU:0") or 0)
    tier.close()
    return limit, report.predicted_peak_bytes, min(peaks) - before + MIB  # the argument


def test_a_step_whose_gradient_has_constants_keeps_its_limit(tmp_path, in_fresh_process):
    limit, predicted, measured = in_fresh_process(in_part_of_the_memory, tmp_path)
    assert measured <= limit
    assert measured == pytest.approx(predicted, rel=0.1)
