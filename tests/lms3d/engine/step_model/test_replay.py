"""A schedule's allocations replayed: what fits in pieces, and what does not fit by a coincidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lms3d.engine import tuning
from lms3d.engine.step_model import replay as replays
from lms3d.engine.step_model.allocator import (
    CPU_REGIONS,
    FIRST_REGIONS_BYTES,
    GPU_REGIONS,
    small_region_bytes,
)
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.pool import GPU_POOL
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.replay import (
    Placement,
    ordered_lives,
    place,
    replay,
    replay_changes,
    steady,
    unplaced_bytes,
)
from lms3d.engine.step_model.schedule import build
from lms3d.engine.step_model.simulate import simulate
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step, swapped_over_a_chain

KIB = 1024
HOLES = step(
    placeholder(),
    op("a", "x", mib=4),
    op("b", "a", mib=4),
    op("c", "b", mib=4),
    op("d", "a", "c", mib=0.25),
    op("e", "d", mib=6),
    op("f", "b", "e", mib=0.25),
    resident_mib=1,
)
"""a and c leave two holes of 4 MiB around b; the 6 MiB of e fit by their sum only."""


def test_replay_needs_the_bytes_in_one_piece():
    problem = reduce(HOLES, SECONDS)
    schedule = build(problem, {}, SECONDS)
    assert schedule.peak_bytes <= 14 * MIB
    assert not replay(problem, schedule, 14 * MIB, GPU_REGIONS).fits
    placed = replay(problem, schedule, 24 * MIB, GPU_REGIONS)
    assert placed.fits
    assert placed.peak_bytes >= schedule.peak_bytes


def test_what_finds_no_piece_is_counted_where_it_would_be():
    """The 6 MiB of e, in each replay, as long as e lives."""
    problem = reduce(HOLES, SECONDS)
    schedule = build(problem, {}, SECONDS)
    counted = list(unplaced_bytes(problem, schedule, 14 * MIB, GPU_REGIONS, most_bytes=14 * MIB))
    made, read = problem.anchors.index("e"), problem.anchors.index("f")
    assert len(counted) == tuning.PERTURBED + 1
    assert all(bytes_at[[made, read]].min() >= 6 * MIB for bytes_at in counted)
    assert not any(bytes_at[: problem.anchors.index("d")].any() for bytes_at in counted)
    roomy = unplaced_bytes(problem, schedule, 24 * MIB, GPU_REGIONS, most_bytes=24 * MIB)
    assert not any(bytes_at.any() for bytes_at in roomy)


def test_what_is_in_use_above_the_most_counts_as_planned_only():
    problem = reduce(HOLES, SECONDS)
    schedule = build(problem, {}, SECONDS)
    peak = replay(problem, schedule, 24 * MIB, GPU_REGIONS).peak_bytes
    *shifted, planned = unplaced_bytes(problem, schedule, 24 * MIB, GPU_REGIONS, most_bytes=peak - MIB)
    assert not any(bytes_at.any() for bytes_at in shifted)
    assert planned.max() == MIB


def test_replay_hands_a_forwarded_chunk_on():
    graph = step(placeholder(), op("a", "x", mib=4), op("b", "a", mib=4, type="Relu"), op("c", "b", mib=0.1))
    problem = reduce(graph, SECONDS)
    assert replay(problem, build(problem, {}, SECONDS), 8 * MIB + MIB // 2, GPU_REGIONS).fits


def test_a_simulated_step_needs_the_bytes_in_one_piece_too():
    run = simulate(HOLES, SECONDS)
    assert run.peak_bytes <= 14 * MIB
    assert not replay_changes(run.changes, MIB, 14 * MIB, GPU_REGIONS).fits
    placed = replay_changes(run.changes, MIB, 24 * MIB, GPU_REGIONS)
    assert placed.fits
    assert placed.peak_bytes >= run.peak_bytes


def test_a_simulated_step_hands_a_forwarded_chunk_on():
    graph = step(placeholder(), op("a", "x", mib=4), op("b", "a", mib=4, type="Relu"), op("c", "b", mib=0.5))
    assert replay_changes(simulate(graph, SECONDS).changes, 0, 8 * MIB, GPU_REGIONS).fits


def test_the_workspace_of_a_simulated_step_is_given_back():
    graph = step(placeholder(), op("a", "x", workspace_bytes=3 * MIB), op("b", "a", workspace_bytes=3 * MIB))
    changes = simulate(graph, SECONDS).changes
    assert replay_changes(changes, 0, 5 * MIB, GPU_REGIONS) == Placement(True, 5 * MIB)
    assert sum(change.bytes for change in changes) == 0


def test_replay_without_room_for_the_weights():
    problem = reduce(step(placeholder(), op("a", "x"), resident_mib=9), SECONDS)
    assert not replay(problem, build(problem, {}, SECONDS), 4 * MIB, GPU_REGIONS).fits


def coincidence():
    """Ready for two tensors of 8 MiB and one of 4 in a pool of 24.5, unless a small one comes a little early.

    While `a` is there, at the bottom, a small one lies above it. It leaves two pieces that are too large for one tensor of
    8 MiB and too small for two, and nothing for the last.
    """
    before = [op("a", "x", mib=10), op("end", "a", mib=0.001), op("b", "x", mib=0.1), op("t", "b", mib=0.001)]
    small = [op(f"s{i}", "t", mib=40 / 1024) for i in range(3)]
    large = [op("c0", "x", mib=8), op("c1", "x", mib=8), op("c2", "x", mib=4)]
    last = op("d", "c0", "c1", "c2", "s0", "s1", "s2", mib=0.001)
    problem = reduce(step(placeholder(), *before, *small, *large, last), SECONDS)
    return problem, build(problem, {}, SECONDS)


def test_what_fits_only_by_a_coincidence_is_refused():
    problem, schedule = coincidence()
    pool = int(24.5 * MIB)
    assert schedule.peak_bytes < pool
    assert replay(problem, schedule, pool, GPU_REGIONS).fits
    assert not place(problem, schedule, pool, GPU_REGIONS).fits
    assert GPU_POOL.needed_bytes(problem, schedule) * (1 - tuning.RESERVE) > pool
    roomy = place(problem, schedule, 40 * MIB, GPU_REGIONS)
    assert roomy.fits
    assert roomy.peak_bytes == replay(problem, schedule, 40 * MIB, GPU_REGIONS).peak_bytes


def test_what_fits_by_a_coincidence_does_not_with_other_shifts(monkeypatch):
    problem, schedule = coincidence()
    assert not steady(problem, schedule, int(24.5 * MIB), GPU_REGIONS)
    assert steady(problem, schedule, 40 * MIB, GPU_REGIONS)
    monkeypatch.setattr(replays, "HELD_OUT", 0)
    assert steady(problem, schedule, int(24.5 * MIB), GPU_REGIONS)


def test_the_same_shifts_each_time():
    problem, schedule = coincidence()
    found = [[replay(problem, schedule, int(24.5 * MIB), GPU_REGIONS, seed) for seed in range(6)] for _ in range(2)]
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@pytest.mark.parametrize("regions", [CPU_REGIONS, GPU_REGIONS])
def test_memory_changes_hands_where_the_schedule_says(regions):
    problem, schedule, _ = swapped_over_a_chain()
    lives = ordered_lives(problem, schedule, regions)[-len(schedule.copies) :]
    assert [(life.start, life.end) for life in lives] == [(copy.start, copy.end) for copy in schedule.copies]


def test_a_swap_in_takes_its_memory_before_the_op_that_follows():
    problem, schedule, swapped = swapped_over_a_chain()
    back = next(c for c in schedule.copies if c.buffer == swapped and c.number)
    turns = {life.turn for life in ordered_lives(problem, schedule, CPU_REGIONS) if life.start == back.start}
    lives = ordered_lives(problem, schedule, CPU_REGIONS)[-len(schedule.copies) :]
    assert lives[schedule.copies.index(back)].turn == min(turns) < max(turns)


@pytest.mark.parametrize(
    ("resident_mib", "small_kib"),
    [
        (1, 40),  # the small tensor goes into the small region: the smaller of two pieces
        (8, 40),  # weights fill that region: it lies among the crumbs
        (16, 0),  # weights fill that region first
        (8, 3),  # too small to matter
        (8, 0),
    ],
)
def test_small_tensors_of_a_split_pool(resident_mib, small_kib):
    limit = 128 * MIB
    large = limit - small_region_bytes(limit) - FIRST_REGIONS_BYTES
    graph = step(
        placeholder(),
        op("s", "x", mib=small_kib / 1024),
        op("c", "x", mib=large / MIB - max(resident_mib - 8, 0) - 16 / 1024),
        op("d", "c", "s", mib=0.001),
        resident_mib=resident_mib,
    )
    problem = reduce(graph, SECONDS)
    assert replay(problem, build(problem, {}, SECONDS), limit, CPU_REGIONS).fits


def test_a_workspace_that_is_a_crumb_takes_no_piece():
    limit = 100 * MIB
    large = limit - FIRST_REGIONS_BYTES - 16 * KIB
    for workspace, fits in ((64 * KIB, True), (65 * KIB, False)):
        graph = step(placeholder(), op("c", "x", mib=large / MIB, workspace_bytes=workspace), resident_mib=1 / 1024)
        problem = reduce(graph, SECONDS)
        assert replay(problem, build(problem, {}, SECONDS), limit, CPU_REGIONS).fits == fits


def test_an_op_that_is_computed_again_takes_its_workspace_again():
    graph = step(
        placeholder(),
        op("a", "x", mib=1, workspace_bytes=8 * MIB),
        *(op(f"f{i}", f"f{i - 1}" if i else "a", mib=0.5, flops=1) for i in range(6)),
        op("g", "a", "f5", mib=1),
    )
    problem = reduce(graph, SECONDS)
    (a,) = [i for i, b in enumerate(problem.buffers) if b.root == "a:0"]
    schedule = build(problem, {a: Choice(Mode.RECOMPUTE)}, SECONDS)
    (again,) = [i for i, e in enumerate(schedule.events) if not e.is_anchor]
    assert schedule.live_bytes[again] == 9.5 * MIB
    spaces = [life for life in ordered_lives(problem, schedule, CPU_REGIONS) if life.bytes == 8 * MIB]
    assert [(life.start, life.end) for life in spaces] == [(0, 0), (again, again)]


def test_small_tensors_are_there_as_soon_as_their_inputs():
    """The executor runs ready ops: readers of weights alone at the start, wherever it was traced."""
    graph = step(
        placeholder("w"),
        placeholder(),
        op("a", "x"),
        op("b", "a"),
        op("early", "w", mib=0.01),
        op("late", "b", mib=0.01),
        op("c", "b", "early", "late"),
    )
    problem = reduce(graph, SECONDS)
    assert problem.anchors == ("a", "b", "late", "c")
    assert [(s.start, s.end) for s in problem.small] == [(0, 3), (2, 3)]


def test_what_is_more_than_a_crumb_has_its_place_in_the_order():
    """Such tensors come and go with the large ones: one that comes early takes the piece that another was to have."""
    graph = step(
        placeholder("w", mib=0.01),
        placeholder(mib=0.01),
        op("a", "x", mib=400),
        op("b", "a", mib=400),
        op("padded", "w", mib=0.07),
        op("c", "b", "padded", mib=0.01),
    )
    problem = reduce(graph, SECONDS)
    assert problem.anchors == ("a", "b", "padded", "c")
    padded = problem.buffers[2]
    assert (padded.defined, padded.reads, padded.swappable, padded.recomputable) == (2, (3,), False, False)
    assert problem.small_bytes.max() < 64 * KIB


def pooled(**choices):
    """A pooling with its gradient, `hidden` bytes from one to the other; the problem and its schedule."""
    pool = op("p", "a", type="MaxPool3D", mib=1, hidden_bytes=MIB)
    chain = [op(f"f{i}", f"f{i - 1}" if i else "p", mib=0.5, flops=1) for i in range(6)]
    graph = step(placeholder(), op("a", "x", mib=2), pool, *chain, op("g", "a", "p", "f5", type="MaxPool3DGrad", mib=2))
    problem = reduce(graph, SECONDS)
    index = {b.root: i for i, b in enumerate(problem.buffers)}
    return problem, build(problem, {index[f"{k}:0"]: Choice(mode) for k, mode in choices.items()}, SECONDS)


def test_what_a_pooling_hides_lives_until_its_gradient():
    problem, schedule = pooled()
    assert [(s.bytes, s.start, s.end, s.hidden) for s in problem.small] == [(MIB, 1, 8, True)]
    hidden = next(life for life in ordered_lives(problem, schedule, CPU_REGIONS) if life.bytes == MIB)
    assert (hidden.start, hidden.end) == (1, 8)  # not shifted
    assert schedule.live_bytes[1] == 4 * MIB


def test_what_a_pooling_that_is_computed_again_hides():
    """Its gradient reads the second one, which hides as much from there on; what the first one hides nobody needs."""
    problem, schedule = pooled(p=Mode.RECOMPUTE)
    again = [i for i, e in enumerate(schedule.events) if not e.is_anchor]
    hidden = [life for life in ordered_lives(problem, schedule, CPU_REGIONS) if life.bytes == MIB and life.turn == 3]
    assert [(life.start, life.end) for life in hidden] == [(1, 1), (again[0], len(schedule.events) - 1)]


def test_an_op_takes_over_the_first_of_its_inputs():
    for first, second in (("a", "b"), ("b", "a")):
        graph = step(
            placeholder(),
            op("a", "x"),
            op("b", "x"),
            op("sum", first, second, type="AddV2"),
            op("z", "sum", mib=0.1),
        )
        problem = reduce(graph, SECONDS)
        heirs = [c for c in build(problem, {}, SECONDS).copies if c.heir is not None]
        assert [problem.buffers[c.buffer].root for c in heirs] == [f"{first}:0"]


def test_an_op_does_not_take_over_what_it_reads_twice():
    graph = step(
        placeholder(), op("a", "x", mib=4), op("square", "a", "a", type="Mul", mib=4), op("z", "square", mib=0.1)
    )
    schedule = build(reduce(graph, SECONDS), {}, SECONDS)
    assert schedule.peak_bytes == 8 * MIB
    assert all(c.heir is None for c in schedule.copies)


@pytest.mark.parametrize("after", [(), ("Relu",), ("Relu", "Relu")], ids=["last", "taken over", "taken over twice"])
def test_an_op_takes_over_a_swap_in_that_begins_with_it(after):
    """`sum` writes into what came back, its first input; `b` is freed, and leaves a hole below."""
    later = [op(f"t{i}", f"t{i - 1}" if i else "sum", type=kind, mib=4) for i, kind in enumerate(after)]
    graph = step(
        placeholder(),
        op("a", "x", mib=4),
        op("f", "a", mib=0.1),
        op("g", "f", mib=0.1),
        op("b", "g", mib=4),
        op("sum", "a", "b", type="AddV2", mib=4),
        *later,
        op("z", later[-1].name if later else "sum", mib=4),
        op("end", "z", mib=0.1),
    )
    problem = reduce(graph, SECONDS)
    index = {b.root: i for i, b in enumerate(problem.buffers)}
    schedule = build(problem, {index["a:0"]: Choice(Mode.SWAP, split=1, tight_in=True, tight_out=True)}, SECONDS)
    back = next(c for c in schedule.copies if c.mode is Mode.SWAP)
    assert (back.start, back.first_read) == (problem.anchors.index("sum"),) * 2
    assert problem.buffers[back.heir.buffer].root == "sum:0"
    assert all(c.heir is None for c in schedule.copies if c.buffer == index["b:0"])
    assert schedule.live_bytes[back.start] == 8 * MIB
    lives = ordered_lives(problem, schedule, CPU_REGIONS)
    there = [life for life in lives if life.bytes and life.start <= back.start <= life.end]
    assert sorted((life.bytes, life.turn) for life in there) == [(4 * MIB, 0), (4 * MIB, 2)]
    taken = next(life for life in there if life.turn == 0)
    passed = [lives[taken.heir]] if taken.heir is not None else []
    assert [life.bytes for life in passed] == [0] * bool(after)
    found = replay(problem, schedule, 24 * MIB, GPU_REGIONS)
    assert found.fits
    assert schedule.peak_bytes <= found.peak_bytes < schedule.peak_bytes + MIB  # nothing is held twice, or for good


def test_batches_lie_in_the_pool_as_single_tensors():
    """One that comes late may get the hole that `a` has left, and `c` finds none."""
    ops = [op("a", "x", mib=6), op("b", "a", mib=6), op("c", "b", mib=6)]
    graph = replace(step(placeholder(), *ops, resident_mib=10), batches=(4 * MIB, 4 * MIB))
    problem = reduce(graph, SECONDS)
    schedule = build(problem, {}, SECONDS)
    fits = {seed: replay(problem, schedule, 23 * MIB, GPU_REGIONS, seed).fits for seed in range(8)}
    assert fits[0]
    assert not all(fits.values())
    assert all(replay(problem, schedule, 40 * MIB, GPU_REGIONS, seed).fits for seed in range(8))


def test_what_goes_to_the_tier_is_not_taken_over():
    """It is held until it is written, and what reads it just then gets no memory from it."""
    chain = [op(f"f{i}", f"f{i - 1}" if i else "b", mib=0.25, flops=1) for i in range(6)]
    graph = step(
        placeholder(),
        op("a", "x", mib=4, flops=1),
        op("b", "a", type="Relu", mib=4, flops=1),
        *chain,
        op("z", "f5", "a", mib=0.1),
    )
    problem = reduce(graph, SECONDS)
    away = [b.root for b in problem.buffers].index("a:0")
    schedule = build(problem, {away: Choice(Mode.SWAP, tight_out=True)}, SECONDS)
    assert [c.heir for c in schedule.copies if c.buffer == away] == [None, None]


def test_on_a_gpu_the_gradient_of_an_input_takes_its_memory_after_its_workspace():
    """Its result then lies above the hole that the workspace leaves, and splits the free piece."""
    graph = step(
        placeholder(),
        op("a", "x", mib=4),
        op("dx", "a", type="Conv3DBackpropInputV2", mib=4, workspace_bytes=4 * MIB),
        op("w", "dx", "a", mib=0.1, workspace_bytes=7 * MIB),
        op("end", "w", mib=0.1),
    )
    problem = reduce(graph, SECONDS)
    schedule, limit = build(problem, {}, SECONDS), int(15.5 * MIB)
    assert replay(problem, schedule, limit, replace(GPU_REGIONS, late_types=frozenset())).fits
    assert not replay(problem, schedule, limit, GPU_REGIONS).fits
    assert replay(problem, schedule, 20 * MIB, GPU_REGIONS).fits
    turns = {life.turn for life in ordered_lives(problem, schedule, GPU_REGIONS) if life.bytes == 4 * MIB}
    assert len(turns) == 2
