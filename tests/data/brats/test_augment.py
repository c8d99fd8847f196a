"""The 48 symmetries are a group, and TensorFlow agrees with NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.brats.augment import SYMMETRIES, apply, compose, inverse, tf_apply

numbers = st.integers(0, 47)
CUBE = np.arange(27).reshape(3, 3, 3)


def test_there_are_48_different_ones_and_the_first_does_nothing():
    assert len(SYMMETRIES) == 48
    assert len({apply(CUBE, k).tobytes() for k in range(48)}) == 48
    np.testing.assert_array_equal(apply(CUBE, 0), CUBE)


@given(numbers, st.sampled_from([(4, 4, 4), (4, 4, 4, 3), (2, 4, 4, 4, 3)]))
def test_the_inverse_is_exact(k, shape):
    array = np.random.default_rng(k).random(shape, np.float32)
    np.testing.assert_array_equal(apply(apply(array, k), inverse(k)), array)
    np.testing.assert_array_equal(apply(apply(array, inverse(k)), k), array)


@given(numbers, numbers)
def test_two_in_turn_are_one_of_the_48(first, second):
    np.testing.assert_array_equal(apply(apply(CUBE, first), second), apply(CUBE, compose(second, first)))


@given(numbers, numbers, numbers)
def test_group_laws(a, b, c):
    assert compose(compose(a, b), c) == compose(a, compose(b, c))
    assert compose(a, inverse(a)) == compose(inverse(a), a) == 0
    assert compose(a, 0) == compose(0, a) == a


@pytest.mark.parametrize("shape", [(3, 3, 3), (3, 3, 3, 2), (2, 3, 3, 3, 2)])
def test_tensorflow_does_the_same_in_one_trace(shape):
    import tensorflow as tf

    traced = tf.function(tf_apply)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for k in range(48):
        np.testing.assert_array_equal(traced(tf.constant(array), tf.constant(k)), apply(array, k))
    assert traced.experimental_get_tracing_count() == 1
    assert traced.get_concrete_function(tf.constant(array), tf.constant(0)).outputs[0].shape == shape


@given(numbers)
@settings(max_examples=10)
def test_channels_and_samples_stay_apart(k):
    array = np.arange(2 * 27 * 2).reshape(2, 3, 3, 3, 2)
    moved = apply(array, k)
    for sample in range(2):
        for channel in range(2):
            np.testing.assert_array_equal(moved[sample, ..., channel], apply(array[sample, ..., channel], k))
