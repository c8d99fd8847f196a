"""Which buffers a plan may move."""

from __future__ import annotations

import pytest

from lms3d.engine.step_model.problem import reduce
from lms3d.engine.tuning import MOST_KEPT_SHARE, SMALLEST_SHARE
from tests.lms3d.engine.toy_graphs import SECONDS, op, placeholder, step

LARGE, SMALL = 8.0, 0.125
FEW = int(1 / SMALLEST_SHARE * SMALL / LARGE) // 2
"""So many large buffers, and a small one is larger than the smallest share of all."""


def chain(small: int, large: int) -> list[bool]:
    """For a chain of small and then large buffers, whether each may move."""
    sizes = [SMALL] * small + [LARGE] * large
    names = [f"f{i}" for i in range(len(sizes))]
    before = ["x", *names]
    ops = [op(name, given, mib=size) for name, given, size in zip(names, before, sizes, strict=False)]
    return [
        buffer.swappable
        for buffer in reduce(step(placeholder(mib=SMALL), *ops, op("end", names[-1], mib=0)), SECONDS).buffers
    ]


def test_all_of_a_few_buffers_may_move():
    assert all(chain(1, FEW))


def test_small_buffers_stay_beside_large_ones():
    assert chain(100, 10 * FEW) == [False] * 100 + [True] * 10 * FEW


@pytest.mark.parametrize("number", [10, int(2 / SMALLEST_SHARE)])
def test_equal_buffers_may_move_however_many_they_are(number):
    assert all(chain(number, 0))


def test_many_small_buffers_may_move_beside_large_ones():
    """Together they hold more than may stay."""
    large = 10 * FEW
    small = int(large * LARGE * 2 * MOST_KEPT_SHARE / SMALL)
    assert all(chain(small, large))
