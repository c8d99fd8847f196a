"""Variables that are copied before a step and put back if it fails."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lms3d.keras_step.variable_backup import Snapshot


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_what_was_taken_last_comes_back(dtype):
    variable, other = tf.Variable(tf.ones((3, 2), dtype)), tf.Variable(5)
    snapshot = Snapshot([variable, other]).take()
    variable.assign(tf.zeros((3, 2), dtype))
    other.assign(6)
    snapshot.take()
    variable.assign(tf.ones((3, 2), dtype))
    other.assign(7)
    snapshot.restore()
    np.testing.assert_array_equal(variable.numpy(), np.zeros((3, 2), variable.dtype.as_numpy_dtype))
    assert other.numpy() == 6


def test_copies_are_copies_and_reuse_their_memory():
    """An update in place after `take` does not reach them."""
    variable = tf.Variable([1.0, 2.0])
    snapshot = Snapshot([variable]).take()
    place = snapshot._copies[0]
    variable.assign_add([10.0, 10.0])
    np.testing.assert_array_equal(place, [1, 2])
    snapshot.take()
    assert snapshot._copies[0] is place
    np.testing.assert_array_equal(place, [11, 12])


def test_knows_its_variables():
    one, two = tf.Variable(1.0), tf.Variable(2.0)
    snapshot = Snapshot([one, two])
    assert snapshot.is_of([one, two])
    assert not snapshot.is_of([two, one])
    assert not snapshot.is_of([one])
