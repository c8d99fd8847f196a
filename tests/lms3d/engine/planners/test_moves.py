"""What the planner may change about a tensor that comes back three times."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from lms3d.engine.ir import Op
from lms3d.engine.planners.hybrid import moves
from lms3d.engine.step_model.decisions import KEEP, Choice, Mode
from lms3d.engine.step_model.problem import Problem, reduce
from lms3d.engine.step_model.schedule import build
from tests.lms3d.engine.toy_graphs import SECONDS, op, placeholder, step

MAPPED = replace(SECONDS, mapped=True)


def chain(before: str, prefix: str, length: int) -> list[Op]:
    names = [before, *(f"{prefix}{j}" for j in range(length))]
    return [op(name, source, mib=0.25, flops=1) for source, name in itertools.pairwise(names)]


def three_gaps(machine=SECONDS) -> Problem:
    """`a` is buffer 0, read at once, and at the anchors 6, 12 and 18; the last time, the most bytes are there."""
    ops = [placeholder(mib=0.01), op("a", "x", mib=4, flops=1)]
    for i in range(3):
        ops += chain(ops[-1].name, f"f{i}", 5)
        ops.append(op(f"r{i}", f"f{i}4", "a", mib=0.25 + 4 * (i == 2), flops=1))
    return reduce(step(*ops), machine)


def others(choice: Choice, machine=SECONDS) -> set[tuple[Mode, tuple[int, ...]]]:
    problem = three_gaps(machine)
    schedule = build(problem, {0: choice}, machine)
    return {(c.mode, c.recompute_at) for c in moves.others(problem, schedule, 0, choice) if not c.later_split}


def test_one_copy_more_or_less_is_computed_again():
    assert three_gaps().buffers[0].reads == (1, 6, 12, 18)
    whole = {(Mode.KEEP, ()), (Mode.RECOMPUTE, ())}
    swapped = {(Mode.SWAP, (6,)), (Mode.SWAP, (12,)), (Mode.SWAP, (18,))}
    assert others(Choice(Mode.SWAP)) == whole | swapped
    assert others(Choice(Mode.SWAP, recompute_at=(6,))) == whole | {(Mode.SWAP, (6, 12)), (Mode.SWAP, (6, 18))}
    assert others(Choice(Mode.SWAP, recompute_at=(6, 12))) == whole | {(Mode.SWAP, (6,)), (Mode.SWAP, (12,))}
    some = {(Mode.SWAP, (12, 18)), (Mode.SWAP, (6, 18)), (Mode.SWAP, (6, 12))}
    assert others(Choice(Mode.RECOMPUTE)) == {(Mode.KEEP, ()), (Mode.SWAP, ())} | some


def test_what_is_read_where_it_lies_is_not_computed_again():
    """But for the first time, for which it may not be written yet."""
    assert others(Choice(Mode.SWAP), MAPPED) == {(Mode.KEEP, ()), (Mode.RECOMPUTE, ()), (Mode.SWAP, (6,))}


def test_neighbouring_copies_may_become_one():
    """The copies at 6, 12 and 18 lie equally far apart; from the shared one on, no gap is cut any longer."""
    problem, alone = three_gaps(), Choice(Mode.RECOMPUTE)
    schedule = build(problem, {0: alone}, SECONDS)
    together = Choice(Mode.RECOMPUTE, later_split=6)
    assert list(moves.shared(schedule, 0, alone)) == [together]
    assert together in moves.others(problem, schedule, 0, alone)
    shared = build(problem, {0: together}, SECONDS)
    assert [len(c.readers) for c in shared.copies if c.buffer == 0] == [1, 3]
    assert schedule.seconds - shared.seconds == pytest.approx(2 * problem.buffers[0].seconds)
    assert list(moves.shared(shared, 0, together)) == []


def test_what_is_read_in_the_tier_is_not_shared():
    schedule = build(three_gaps(MAPPED), {0: Choice(Mode.SWAP)}, MAPPED)
    assert list(moves.shared(schedule, 0, Choice(Mode.SWAP))) == []


def test_easier_choices_let_go_of_one_at_a_time():
    choice = Choice(Mode.SWAP, tight_out=True, recompute_at=(6, 12))
    found = list(moves.easier(choice))
    assert found[0] == KEEP
    assert [c.recompute_at for c in found[-2:]] == [(12,), (6,)]
    assert replace(choice, tight_out=False) in found


def at_the_peak(choice: Choice, machine=SECONDS) -> set[Choice]:
    problem = three_gaps(machine)
    schedule = build(problem, {0: choice}, machine)
    event = int(schedule.live_bytes.argmax())
    return {c for _, b, c in moves.at_event(problem, {0: choice}, schedule, event) if b == 0}


def test_a_copy_that_is_read_at_the_peak_may_be_read_in_the_tier():
    assert Choice(Mode.SWAP, split=1, recompute_at=(6,)) in at_the_peak(
        Choice(Mode.SWAP, split=1, recompute_at=(6, 18)), MAPPED
    )
    assert Choice(Mode.SWAP) in at_the_peak(Choice(Mode.RECOMPUTE), MAPPED)


def test_a_copy_that_waits_at_the_peak_may_be_computed_again():
    """Swapped in, it is there while `big` is made; the last swapped copy leaves nothing to swap."""
    ops = [placeholder(mib=0.01), op("a", "x", mib=4, flops=1)]
    ops += chain("a", "f", 5)
    ops.append(op("r", "f4", "a", mib=0.25, flops=1))
    ops += chain("r", "g", 5)
    ops += [op("big", "g4", mib=8, flops=1), op("after", "big", mib=0.25, flops=1), op("z", "after", "a", mib=0.25)]
    problem = reduce(step(*ops), SECONDS)
    z = problem.anchors.index("z")
    for choice, expected in (
        (Choice(Mode.SWAP), Choice(Mode.SWAP, recompute_at=(z,))),
        (Choice(Mode.SWAP, recompute_at=(problem.anchors.index("r"),)), Choice(Mode.RECOMPUTE)),
    ):
        schedule = build(problem, {0: choice}, SECONDS)
        event = int(schedule.live_bytes.argmax())
        assert problem.anchors[schedule.events[event].anchor] in ("big", "after")
        assert expected in [c for _, b, c in moves.at_event(problem, {0: choice}, schedule, event) if b == 0]


def test_a_read_that_comes_in_front_changes_nothing():
    """`b` is computed again before `r1` and reads `a` for that: the copy of `a` for `r1` is still computed, not swapped in."""
    ops = [placeholder(mib=0.01), op("a", "x", mib=4, flops=1), op("b", "a", mib=4, flops=1)]
    ops += chain("b", "f", 6)
    ops += [op("r0", "f5", "b", mib=0.25, flops=1), op("r1", "r0", "a", mib=0.25, flops=1)]
    ops += chain("r1", "g", 6)
    ops.append(op("r2", "g5", "a", mib=0.25, flops=1))
    problem = reduce(step(*ops), SECONDS)
    choices = {0: Choice(Mode.SWAP, recompute_at=(problem.anchors.index("r1"),)), 1: Choice(Mode.RECOMPUTE)}
    copies = [c for c in build(problem, choices, SECONDS).copies if c.buffer == 0]
    assert [c.mode for c in copies] == [Mode.KEEP, Mode.RECOMPUTE, Mode.SWAP]
    assert [problem.anchors[r.anchor] for r in copies[1].readers] == ["r0", "r1"]
