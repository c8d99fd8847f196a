"""Which buffers a plan may move."""

from __future__ import annotations

import pytest

from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.schedule import build
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


def updated(reads: dict[str, str]):
    """A chain in which `c3` updates the variable that `made` reads; `reads`: op of the chain -> a further tensor that it reads."""
    read = op("read", "w", type="ReadVariableOp", mib=LARGE, stateful=True)
    start = [placeholder("w", mib=0), placeholder(mib=0), read, op("made", "read", "x", mib=LARGE)]
    names = [f"c{i}" for i in range(12)]
    ops = []
    for name, before in zip(names, ["made", *names], strict=False):
        inputs = (before, *([reads[name]] if name in reads else []))
        ops.append(op(name, *inputs, mib=LARGE))
        if name == "c3":
            ops.append(op("update", "w", name, mib=0, type="AssignSubVariableOp", stateful=True))
    return reduce(step(*start, *ops, returned=["c11"]), SECONDS)


@pytest.mark.parametrize("at", ["c2", "c9"])
def test_nothing_is_recomputed_of_a_variable_after_its_update(at):
    """SCHEDULE-7."""
    problem = updated({at: "made"})
    made, reader = (next(i for i, b in enumerate(problem.buffers) if b.root == f"{name}:0") for name in ("made", at))
    first = problem.anchors.index("update")
    assert problem.buffers[made].last_recompute == first
    assert problem.buffers[reader].last_recompute > len(problem.anchors)
    position = problem.anchors.index(at)
    for choice in (Choice(Mode.RECOMPUTE, split=1), Choice(Mode.SWAP, split=1, recompute_at=(position,))):
        copies = build(problem, {made: choice}, SECONDS).copies
        modes = [c.mode for c in copies if c.buffer == made]
        late = [Mode.KEEP] if choice.mode is Mode.RECOMPUTE else [Mode.KEEP, Mode.SWAP]
        assert modes == ([Mode.KEEP, Mode.RECOMPUTE] if position <= first else late)


def test_a_recomputed_reader_counts_when_it_is_recomputed():
    """`c0` reads `made` early, but is itself computed again after the update."""
    problem = updated({"c9": "c0"})
    index = {b.root: i for i, b in enumerate(problem.buffers)}
    again = Choice(Mode.RECOMPUTE, split=1)
    copies = build(problem, {index["made:0"]: again, index["c0:0"]: again}, SECONDS).copies
    assert [c.mode for c in copies if c.buffer == index["made:0"]] == [Mode.KEEP]
    assert [c.mode for c in copies if c.buffer == index["c0:0"]] == [Mode.KEEP, Mode.RECOMPUTE]
