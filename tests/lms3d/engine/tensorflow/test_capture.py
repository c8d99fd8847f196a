"""The capture of a function: its ops, its state, and the same in each process."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine.ir import Op
from lms3d.engine.liveness import roots
from lms3d.engine.passes import manager, shapes
from lms3d.engine.passes.base import Target
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture, traced_order
from tests.lms3d.engine.toy_graphs import SECONDS
from tests.lms3d.engine.traced import SPEC

VOLUME = tf.TensorSpec((1, 8, 8, 8, 3))


def test_control_inputs_have_one_order():
    """`store` recognises the step in another process, and plans do not depend on luck."""

    def late(x: tf.Tensor) -> tf.Tensor:
        first = [tf.sin(x, name=name) for name in ("c", "a", "d", "b")]
        with tf.control_dependencies(first):
            return tf.identity(x, name="last")

    assert capture(functions.trace(late, SPEC)).by_name["last"].control_inputs == ("a", "b", "c", "d")


def with_dead_ops(x: tf.Tensor) -> tf.Tensor:
    tf.sin(tf.zeros(x.shape, name="dead"), name="deader")
    with tf.control_dependencies([tf.cos(x, name="waited_for")]):
        y = tf.identity(x)
    tf.debugging.check_numerics(tf.tan(x, name="for_an_effect"), "no number")
    return tf.square(tf.exp(y, name="read"), name="returned")


def test_ops_that_never_run_are_not_seen():
    seen = capture(functions.trace(with_dead_ops, SPEC)).by_name
    assert {"waited_for", "for_an_effect", "read", "returned"} <= set(seen)
    assert not {"dead", "deader"} & set(seen)


def test_a_plan_brings_no_dead_op_back_to_life():
    """A control edge to or from one would: it would take its memory in each step, and for ever as a folded constant."""

    def long(x: tf.Tensor) -> tf.Tensor:
        first = tf.sin(with_dead_ops(x))
        y = first
        for _ in range(6):
            y = tf.exp(tf.sin(y))
        return y + first

    graph = capture(functions.trace(long, tf.TensorSpec((256, 1024))))
    plan, _ = make_plan(Settings(limit_bytes=5 << 20).request(graph, SECONDS, with_floor=False))
    assert plan.control_edges
    assert not {name for edge in plan.control_edges for name in edge if "dead" in name}


def pooled(x: tf.Tensor, side: int = 2) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.max_pool3d(x, side, side, "SAME", name="pool")
    return tape.gradient(y, x)


@pytest.mark.parametrize(("device", "side", "hidden"), [("CPU:0", 2, 64 * 3), ("CPU:0", 8, 4 * 3), ("GPU:0", 2, 0)])
def test_a_pooling_keeps_the_places_of_its_maxima(device, side, hidden):
    """One byte each, or four if a window has more than 255 places."""
    ops = capture(functions.trace(lambda x: pooled(x, side), VOLUME), compute_device=device).ops
    assert [op.hidden_bytes for op in ops if op.type == "MaxPool3D"] == [hidden]


def test_a_pooling_without_a_gradient_keeps_nothing():
    graph = capture(functions.trace(lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME"), VOLUME))
    assert not any(op.hidden_bytes for op in graph.ops)


def test_nobody_waits_for_a_tensor_to_read_its_shape():
    def both(x: tf.Tensor) -> tf.Tensor:
        late = tf.exp(x)
        shapes = tf.shape_n([x, late], name="shapes")
        return tf.reshape(late, shapes[0]) + tf.cast(shapes[1][0], tf.float32)

    function = functions.trace(both, SPEC)
    expected = function(tf.ones(SPEC.shape))
    assert "shapes" in capture(function).by_name
    shapes.fix_shapes(function.graph)
    assert "shapes" not in capture(function).by_name
    np.testing.assert_array_equal(functions.make_function(function)(tf.ones(SPEC.shape)), expected)


@pytest.mark.parametrize("device", ["CPU:0", "GPU:0"])
def test_what_passes_make_stands_where_it_is_read(device):
    """Sizes that become constants, and turned kernels, are the last ops of the graph. What reads them is not the last to run."""
    kernels = [tf.Variable(tf.ones((3, 3, 3, 3, 3)), name=f"kernel{i}") for i in range(4)]

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            y = x
            for kernel in kernels:
                y = tf.sin(tf.nn.conv3d(y, kernel, [1] * 5, "SAME"))
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, kernels)

    function = functions.trace(step, VOLUME)

    def filters(order: Iterable[Op | tf.Operation]) -> np.ndarray:
        """For each filter's gradient, the number of convolutions, forwards or backwards, that run before it."""
        return np.array([i for i, op in enumerate(o for o in order if "Conv3D" in o.type) if "Filter" in op.type])

    traced = filters(capture(function).ops)
    assert "shapes" in manager.normalise(function, Target(compute_device=device))
    # A turned convolution runs just before its reader, which may be after the filter's gradient beside it.
    for order in (capture(function).ops, traced_order(function.graph)):
        assert abs(filters(order) - traced).max() <= 1


def test_batches_take_the_place_of_the_arguments():
    function = functions.trace(tf.sin, VOLUME)
    own = 8**3 * 3 * 4
    assert capture(function).resident_bytes == own
    assert capture(function).batches == (own,)
    assert capture(function, batches=()).resident_bytes == 0
    counted = capture(function, batches=(own, own, 5), extra_bytes=7)
    assert (counted.resident_bytes, counted.batches) == (2 * own + 12, (own, own, 5))


def padded(kernel: tf.Tensor) -> tf.Tensor:
    """As `JoinedConv3D` widens its kernel: the gradient of each padding is a slice along its axis."""
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        wide = tf.pad(tf.pad(kernel, [[1, 0], [0, 0], [0, 0]], name="first"), [[0, 0], [0, 1], [0, 0]], name="second")
        y = tf.square(wide)
    return tape.gradient(y, kernel)


def test_a_slice_in_one_piece_shares_the_memory_of_its_input():
    """TensorFlow copies two slices only: the one along the second axis, and one that begins at an odd address."""
    graph = capture(functions.trace(padded, tf.TensorSpec((3, 4, 16))))
    slices = {op.outputs[0].bytes: op for op in graph.ops if op.type == "Slice" and op.outputs[0].rank == 3}
    assert {size: op.view for size, op in slices.items()} == {4 * 4 * 16 * 4: False, 3 * 4 * 16 * 4: True}
    view = slices[3 * 4 * 16 * 4]
    assert roots(graph)[view.outputs[0].name] == view.inputs[0]
    odd = capture(functions.trace(padded, tf.TensorSpec((3, 3, 5))))
    assert not [op for op in odd.ops if op.view]


VIEWS = [  # shape, begin, size, whether TensorFlow hands out a part of the input: where rows end at multiples of 64 bytes
    ((2, 2 << 20), (1, 0), (1, -1), True),
    ((8, 16), (2, 0), (2, 16), True),
    ((8, 8), (2, 0), (2, 8), False),
    ((8, 32), (2, 1), (2, 31), False),
    ((64,), (16,), (32,), True),
    ((64,), (16,), (33,), False),
    ((64,), (15,), (32,), False),
    ((64,), (16,), (-1,), True),
    ((3, 5), (0, 0), (-1, -1), True),
]


@pytest.mark.parametrize(("shape", "begin", "size", "shared"), VIEWS)
def test_views(shape, begin, size, shared):
    graph = capture(functions.trace(lambda x: tf.slice(tf.tanh(x), begin, size), tf.TensorSpec(shape)))
    assert [op.view for op in graph.ops if op.type == "Slice"] == [shared]


def test_views_are_what_tensorflow_shares():
    """Looked at in the memory itself."""
    for shape, begin, size, shared in VIEWS:
        whole = tf.tanh(tf.zeros(shape))
        part = tf.slice(whole, begin, size)
        first, length = (np.from_dlpack(t).__array_interface__["data"][0] for t in (whole, part)), 4 * np.prod(shape)
        start, inside = first
        assert (start <= inside < start + length) == shared, (shape, begin, size)
