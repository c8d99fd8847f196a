"""Volumes that a function of Python's gives or takes, slab by slab."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from lms3d.engine.passes import slicing
from lms3d.engine.slabs import streams as ends
from lms3d.engine.tensorflow import functions, streams
from tests.lms3d.engine.slabs.cases import marked

TYPES = (ends.OP_TYPE,)


def test_slabs_are_read_and_written_one_by_one():
    given = np.random.default_rng(0).normal(size=(12, 4, 5, 2)).astype(np.float32)
    taken, calls = np.zeros_like(given), []

    def read(first, end):
        calls.append(("read", first, end))
        return given[first:end]

    def write(first, planes):
        calls.append(("write", first, first + len(planes)))
        taken[first : first + len(planes)] = planes

    def body(start):
        return streams.write(2 * marked(streams.read(read, given.shape, start)), write)

    function = functions.trace(body, streams.START)
    slicing.slice_function(function, {0: 3})
    assert calls == []
    assert functions.make_function(function)(tf.constant(0)).numpy() == 12
    np.testing.assert_array_equal(taken, 2 * given)
    assert sorted(calls) == [(kind, first, first + 4) for kind in ("read", "write") for first in (0, 4, 8)]


def test_another_function_of_python_reads_a_joined_tensor():
    def body(x):
        return tf.ensure_shape(tf.numpy_function(lambda a: a * 2, [marked(x)], x.dtype, stateful=False), x.shape)

    array = np.random.default_rng(0).normal(size=(1, 12, 4, 5, 2))
    function = functions.trace(body, tf.TensorSpec(array.shape, array.dtype))
    made = slicing.slice_function(function, {0: 3})
    assert [kind for _, kind, _ in made.step.joined] == [ends.OP_TYPE]
    np.testing.assert_array_equal(functions.make_function(function)(tf.constant(array)), array * 2)
