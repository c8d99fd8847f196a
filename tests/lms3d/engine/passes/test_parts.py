"""Parts along the first axis as slices: the same numbers, and a model that knows whose memory they hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine import liveness
from lms3d.engine.passes import manager, parts
from lms3d.engine.passes.base import Target
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture, traced_order

SHAPE = (6, 64, 128)
Taken = Callable[[tf.Tensor], list[tf.Tensor]]

PARTS: dict[str, Taken] = {
    "split": lambda x: tf.split(x, 3, axis=0),
    "split from behind": lambda x: tf.split(x, 2, axis=-3),
    "split into sizes": lambda x: tf.split(x, [1, 2, 3], axis=0),
    "unstack": lambda x: tf.unstack(x),
    "first": lambda x: [x[:2]],
    "last": lambda x: [x[-2:]],
    "one": lambda x: [x[3]],
    "one from behind": lambda x: [x[-1]],
    "one kept as a row": lambda x: [x[4:5, :, :]],
    "middle": lambda x: [x[1:-1, 0:64]],
    "too far": lambda x: [x[2:100]],
    "one, and a mask that says nothing": lambda x: [tf.strided_slice(x, [2], [3], begin_mask=1, shrink_axis_mask=1)],
}
OTHERS: dict[str, Taken] = {
    "another axis": lambda x: tf.split(x, 2, axis=1),
    "unstack another axis": lambda x: tf.unstack(x, axis=2),
    "steps": lambda x: [x[::2]],
    "backwards": lambda x: [x[::-1]],
    "not whole": lambda x: [x[:2, 1:]],
    "a new axis": lambda x: [x[tf.newaxis, 0]],
    "all": lambda x: [x[:]],
    "one column": lambda x: [x[0, :, 3]],
    "short rows": lambda x: [tf.reshape(x, (-1, 3))[:5]],
    "a vector": lambda x: tf.split(tf.reshape(x, (-1,)), 2),
    "small": lambda x: tf.split(x[:, :2, :4], 2),
}


def step(taken: Taken) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    def run(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = taken(tf.sin(x))
        return (*(tf.cos(part) for part in found), found[-1])

    return run


def types(function: functions.Function) -> list[str]:
    return [op.type for op in traced_order(function.graph)]


@pytest.mark.parametrize("taken", PARTS.values(), ids=PARTS)
def test_parts_are_slices_of_the_same_values(taken):
    x = tf.random.stateless_normal(SHAPE, (1, 2))
    expected = functions.make_function(functions.trace(step(taken), tf.TensorSpec(SHAPE)))(x)
    function = functions.trace(step(taken), tf.TensorSpec(SHAPE))
    assert manager.run(function, [parts.SliceParts(Target())]) == ("parts",)
    assert not {"Split", "SplitV", "Unpack", "StridedSlice"} & {*types(function)}
    assert types(function).count("Slice") == len(expected) - 1
    for one, other in zip(functions.make_function(function)(x), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert manager.run(function, [parts.SliceParts(Target())]) == ()


@pytest.mark.parametrize("taken", OTHERS.values(), ids=OTHERS)
def test_parts_that_are_copied_stay(taken):
    function = functions.trace(step(taken), tf.TensorSpec(SHAPE))
    assert manager.run(function, [parts.SliceParts(Target())]) == ()


class Undone(parts.SliceParts):
    """A pass that does not keep its promise."""

    def edit(self, graph: tf.Graph) -> int:
        return 1


def test_a_part_that_is_still_read_is_found():
    function = functions.trace(step(PARTS["split"]), tf.TensorSpec(SHAPE))
    with pytest.raises(RuntimeError, match=r"pass parts: a part that '.*' makes is still read"):
        manager.run(function, [Undone(Target())])


def test_the_whole_stays_as_long_as_a_part():
    """As TensorFlow keeps it: in a pool of its own the step holds what the model says."""

    def run(x: tf.Tensor) -> tf.Tensor:
        kept = tf.sin(x)[:1]
        y = tf.cos(x)
        return tf.reduce_sum(tf.exp(y)) + tf.reduce_sum(kept)

    def whole_readers(function: functions.Function) -> set[str]:
        stores = liveness.storages(capture(function))
        return {reader.split("_")[0] for reader in stores["Sin:0"].readers}

    function = functions.trace(run, tf.TensorSpec(SHAPE))
    assert whole_readers(function) == {"strided"}
    manager.run(function, [parts.SliceParts(Target())])
    assert "Sum" in whole_readers(function)


def test_tensorflow_does_not_copy_such_parts():
    x = tf.random.stateless_normal(SHAPE, (1, 2))
    whole = np.asarray(memoryview(x))
    for name, taken in PARTS.items():
        assert all(np.shares_memory(np.asarray(memoryview(part)), whole) for part in taken(x)), name
    assert not np.shares_memory(np.asarray(memoryview(tf.split(x, 2, axis=1)[0])), whole)
