"""Plane arithmetic: the parts give the same numbers as the whole op, computed plane by plane with numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lms3d.engine.slabs.planes import Range, Window, even_bounds

windows = st.builds(
    Window,
    extent=st.integers(4, 24),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.sampled_from(["SAME", "VALID", (1, 2), (0, 3)]),
).filter(lambda w: w.outputs >= 1)


def convolved(window: Window, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The window op along one axis, by its definition."""
    before, after = window.pads
    padded = np.concatenate([np.zeros(before), x, np.zeros(after)])
    return np.array(
        [
            sum(weights[i] * padded[j * window.stride + i * window.dilation] for i in range(window.kernel))
            for j in range(window.outputs)
        ]
    )


def gradient(window: Window, dy: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The gradient of `convolved` to its input."""
    before, after = window.pads
    padded = np.zeros(window.extent + before + after)
    for j, value in enumerate(dy):
        for i in range(window.kernel):
            padded[j * window.stride + i * window.dilation] += weights[i] * value
    return padded[before : before + window.extent]


@given(windows, st.data())
def test_a_slab_of_outputs_reads_the_planes_it_says(window, data):
    start = data.draw(st.integers(0, window.outputs - 1))
    out = Range(start, data.draw(st.integers(start + 1, window.outputs)))
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=window.extent), rng.normal(size=window.kernel)
    read = window.reads(out)
    piece = np.array([x[i] if 0 <= i < window.extent else 0.0 for i in range(*read)])
    valid = Window(len(piece), window.kernel, window.stride, window.dilation, "VALID")
    np.testing.assert_allclose(convolved(valid, piece, weights), convolved(window, x, weights)[out.start : out.stop])


@given(windows, st.data())
def test_a_slab_of_a_gradient_comes_from_the_part_it_says(window, data):
    start = data.draw(st.integers(0, window.extent - 1))
    planes = Range(start, data.draw(st.integers(start + 1, window.extent)))
    rng = np.random.default_rng(0)
    dy, weights = rng.normal(size=window.outputs), rng.normal(size=window.kernel)
    part = window.part(planes)
    if part is None:
        return
    inner = Window(part.extent, window.kernel, window.stride, window.dilation, window.padding)
    found = gradient(inner, dy[part.out.start : part.out.stop], weights)[
        planes.start - part.origin : planes.stop - part.origin
    ]
    np.testing.assert_allclose(found, gradient(window, dy, weights)[planes.start : planes.stop], atol=1e-12)


@given(windows)
def test_same_and_valid_windows_have_parts(window):
    if isinstance(window.padding, str) and window.read_by(Range(0, 1)).planes > 0:
        assert window.part(Range(0, window.extent)) is not None


@given(st.integers(1, 200), st.integers(1, 40), st.sampled_from([1, 2, 4]))
def test_bounds_are_even_and_start_at_multiples(extent, number, multiple):
    bounds = even_bounds(extent, number, multiple)
    assert (bounds[0], bounds[-1]) == (0, extent)
    assert all(b % multiple == 0 for b in bounds[:-1])
    sizes = np.diff(bounds)
    assert sizes.min() > 0
    assert len(sizes) <= number
    assert sizes[:-1].max(initial=0) - sizes[:-1].min(initial=10**6) <= multiple or len(sizes) == 1
