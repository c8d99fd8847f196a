"""The 48 symmetries are a group."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.data.brats.symmetries import SETS, SYMMETRIES, allowed, apply, inverse

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
    assert apply(apply(CUBE, first), second).tobytes() in {apply(CUBE, k).tobytes() for k in range(48)}


@given(numbers)
@settings(max_examples=10)
def test_channels_and_samples_stay_apart(k):
    array = np.arange(2 * 27 * 2).reshape(2, 3, 3, 3, 2)
    moved = apply(array, k)
    for sample in range(2):
        for channel in range(2):
            np.testing.assert_array_equal(moved[sample, ..., channel], apply(array[sample, ..., channel], k))


@given(st.tuples(*[st.sampled_from([2, 3, 4])] * 3), st.sampled_from(SETS))
def test_allowed_ones_keep_the_shape_and_so_do_their_inverses(shape, which):
    array = np.empty(shape)
    kept = allowed(shape, which)
    assert all(apply(array, k).shape == shape for k in kept)
    assert {inverse(k) for k in kept} == set(kept)
    assert kept[0] == 0


def test_how_many_there_are():
    assert [len(allowed((4, 4, 4), which)) for which in SETS] == [48, 8, 2, 1]
    assert [len(allowed(shape)) for shape in ((4, 2, 4), (2, 3, 4))] == [16, 8]
    assert [SYMMETRIES[k].flips for k in allowed((2, 3, 4), "mirror")] == [(False, False, False), (True, False, False)]
