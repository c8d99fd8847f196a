"""A slab of random numbers is what the whole would have drawn: the same bits, for every type and distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lms3d.engine.slabs.cases import both, marked, spaces

R = tf.raw_ops
FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
TYPES = {
    "StatelessRandomUniformV2": FLOATS,
    "StatelessRandomNormalV2": FLOATS,
    "StatelessTruncatedNormalV2": FLOATS,
    "StatelessRandomUniformIntV2": (tf.int32, tf.int64),
    "StatelessRandomUniformFullIntV2": (tf.int32, tf.int64, tf.uint32, tf.uint64),
}


def _drawn(shape: tuple[int, ...], algorithm: int = 1) -> list[tf.Tensor]:
    key, counter = R.StatelessRandomGetKeyCounter(seed=[3, 4])
    drawn = []
    for kind, dtypes in TYPES.items():
        for dtype in dtypes:
            rest: dict[str, Any] = {"dtype": dtype}
            if kind == "StatelessRandomUniformIntV2":
                rest = {"minval": tf.constant(-5, dtype), "maxval": tf.constant(1000, dtype)}
            numbers = getattr(R, kind)(shape=shape, key=key, counter=counter, alg=algorithm, **rest)
            drawn.append(tf.bitcast(numbers, tf.int64 if dtype == tf.uint64 else numbers.dtype))
    return drawn


@given(st.integers(2, 3).flatmap(spaces), st.sampled_from([1, 3]))
@settings(max_examples=5, deadline=None)
def test_slabs_draw_what_the_whole_would(space, algorithm):
    whole, cut, program, gone = both(
        lambda x: [marked(x), *_drawn(space.shape, algorithm)], [np.ones(space.shape)], space.slabs
    )
    assert set(TYPES) <= gone
    assert not program.joined
    for a, b in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_generator_that_went_on_draws_the_same_in_slabs():
    shape = (2, 7, 3, 3, 2)
    generators = [tf.random.Generator.from_seed(5) for _ in range(2)]
    turn = iter(generators)

    def body(x: tf.Tensor) -> list[tf.Tensor]:
        generator = next(turn)
        return [marked(x), generator.normal((5,)), generator.normal(shape), generator.uniform(shape)]

    whole, cut, _, gone = both(body, [np.ones(shape)], {0: 3})
    assert "StatelessRandomNormalV2" in gone
    for a, b in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("algorithm", [2, None])
def test_another_algorithm_is_drawn_whole(algorithm):
    """ThreeFry, or one that only the running step knows."""
    shape = (1, 6, 3, 2)

    def body(x: tf.Tensor) -> list[tf.Tensor]:
        number = tf.cast(tf.reduce_sum(x) * 0, tf.int32) + 1 if algorithm is None else algorithm
        key, counter = R.StatelessRandomGetKeyCounter(seed=[3, 4])
        return [marked(x), R.StatelessRandomUniformV2(shape=shape, key=key, counter=counter, alg=number)]

    from lms3d.engine.passes import slicing
    from lms3d.engine.tensorflow import functions

    function = functions.trace(body, tf.TensorSpec(shape))
    step = slicing.slice_function(function, {0: 2}).step
    assert "StatelessRandomUniformV2" not in {made.type for made in step.made}
