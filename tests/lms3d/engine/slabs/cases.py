"""One rule alone: a function of few ops, traced once as a whole and once on slabs, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from lms3d.engine.passes import slicing
from lms3d.engine.slabs.sliced_step import SlicedStep
from lms3d.engine.tensorflow import functions

EXACT = 1e-10
"""In float64: only the order of sums differs."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """A batch of images (rank 2) or volumes (rank 3), and how many slabs each level gets, the finest first."""

    rank: int
    batch: int
    planes: int
    width: int
    channels: int
    numbers: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.planes, *(self.width for _ in range(self.rank - 1)), self.channels)

    @property
    def slabs(self) -> dict[int, int]:
        return dict(enumerate(self.numbers))


def spaces(
    rank: int, *, planes: tuple[int, int] = (4, 13), width: tuple[int, int] = (3, 5)
) -> st.SearchStrategy[Space]:
    """Extents that number of slabs divides, and others. At least the finest level is sliced."""
    numbers = st.tuples(st.integers(2, 4), *(st.integers(1, 3) for _ in range(4)))
    return st.builds(
        Space, rank=st.just(rank), batch=st.integers(1, 3), planes=st.integers(*planes), width=st.integers(*width),
        channels=st.integers(1, 3), numbers=numbers,
    )  # fmt: skip


Body = Callable[[tf.Tensor], Sequence[tf.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """types: whose rules the case is about. settings: a strategy for (space, body), where body makes results, gradients among them,
    of a tensor whose level is sliced. error: allowed, relative to the largest number of a result."""

    name: str
    types: frozenset[str]
    settings: st.SearchStrategy[tuple[Space, Body]]
    error: float = EXACT
    dtype: tf.DType = tf.float64
    joins: frozenset[str] = frozenset()
    """Types that may read joined tensors."""


def marked(x: tf.Tensor) -> tf.Tensor:
    """The same numbers, from a convolution: that makes the shape of x a level."""
    kernel = tf.reshape(tf.eye(x.shape[-1], dtype=x.dtype), (*(1 for _ in x.shape[1:-1]), x.shape[-1], x.shape[-1]))
    return (tf.nn.conv3d if len(x.shape) == 5 else tf.nn.conv2d)(x, kernel, [1] * len(x.shape), "VALID")


def both(
    body: Callable[..., Any], arrays: Sequence[np.ndarray], slabs: Mapping[int, int]
) -> tuple[list[np.ndarray], list[np.ndarray], SlicedStep, set[str]]:
    """Results of the whole and of the sliced function, the sliced step, and the types of the ops of the trace that it replaced."""
    specs = [tf.TensorSpec(a.shape, a.dtype) for a in arrays]
    whole, cut = functions.trace(body, *specs), functions.trace(body, *specs)
    nodes = slicing.nodes_of(cut)
    step = slicing.slice_function(cut, slabs).step
    gone = {n.type for n in nodes if n.name not in step.kept}
    results = [_numbers(functions.make_function(f)(*map(tf.constant, arrays))) for f in (whole, cut)]
    return results[0], results[1], step, gone


def _numbers(results: Any) -> list[np.ndarray]:
    def number(t: tf.Tensor) -> np.ndarray:
        return (tf.cast(t, tf.float64) if t.dtype.is_floating else t).numpy()

    return [number(t) for t in tf.nest.flatten(results)]


def check(case: Case, space: Space, body: Body) -> None:
    """The promise of a rule."""
    x = np.random.default_rng(0).uniform(0.1, 0.9, space.shape).astype(case.dtype.as_numpy_dtype)

    def function(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = list(tf.nest.flatten(body(marked(x))))
            floats = [t for t in results if t.dtype == x.dtype]
            weighted = (
                sum(tf.reduce_sum(tf.cast(weights(t), t.dtype) * t) for t in floats) if floats else tf.zeros_like(x)
            )
        return results, tape.gradient(weighted, x, unconnected_gradients="zero")

    whole, cut, step, gone = both(function, [x], space.slabs)
    assert case.types <= gone, f"without a rule that holds: {sorted(case.types - gone)}"
    assert {kind for _, kind, _ in step.joined} <= case.joins, step.joined
    for a, b in zip(whole, cut, strict=True):
        close(b, a, case.error)


def weights(t: tf.Tensor) -> np.ndarray:
    """Another factor for each element, so that none is interchanged unnoticed."""
    return np.random.default_rng(1).uniform(-1, 1, t.shape)


def close(result: np.ndarray, expected: np.ndarray, error: float) -> None:
    assert result.shape == expected.shape
    finite = expected[np.isfinite(expected)] if expected.dtype.kind in "fc" else expected
    scale = max(1.0, float(np.abs(finite).max())) if finite.size and finite.dtype != bool else 1.0
    np.testing.assert_allclose(result, expected, rtol=0, atol=error * scale)
