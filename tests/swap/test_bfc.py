"""TensorFlow's allocator: best fit, when it splits, how it merges."""

from __future__ import annotations

import pytest

from lms3d.swap.bfc import MOST_WASTE, Pool, replay, small_region_bytes
from lms3d.swap.problem import reduce
from lms3d.swap.schedule import build
from tests.swap.toy_graphs import MIB, SECONDS, op, placeholder, step

KIB = 1024


def holes(*sizes: int) -> Pool:
    """A pool whose free chunks have these sizes, in this order of addresses, and nothing else is free."""
    pool = Pool(MIB)
    places = []
    for size in sizes:
        places.append(pool.allocate(size))
        pool.allocate(256)
    pool.allocate(MIB - pool.in_use)
    for place in places:
        pool.release(place)
    return pool


def test_rounds_up():
    pool = Pool(1024)
    assert [pool.allocate(n) for n in (1, 256, 257, 1)] == [0, 256, 512, None]
    assert pool.in_use == pool.peak == 1024


def test_best_fit_and_lowest_address_among_equals():
    pool = holes(8 * KIB, 2 * KIB, 4 * KIB, 2 * KIB)
    assert pool.allocate(2 * KIB) == 8 * KIB + 256
    assert pool.allocate(2 * KIB) == 14 * KIB + 3 * 256
    assert pool.allocate(3 * KIB) == 10 * KIB + 2 * 256


@pytest.mark.parametrize(
    ("hole", "wanted", "taken"),
    [
        (8 * KIB, 4 * KIB, 4 * KIB),  # at least twice: split
        (8 * KIB, 4 * KIB + 256, 8 * KIB),  # else handed out whole
        (MOST_WASTE * 3, MOST_WASTE * 2, MOST_WASTE * 2),  # or 128 MiB left over
        (MOST_WASTE * 3 - 256, MOST_WASTE * 2, MOST_WASTE * 3 - 256),
    ],
)
def test_when_a_chunk_is_split(hole, wanted, taken):
    pool = Pool(hole)
    pool.allocate(wanted)
    assert pool.in_use == taken
    assert (pool.allocate(256) is None) == (taken == hole)


def test_merges_with_both_neighbours():
    pool = Pool(4 * KIB)
    places = [pool.allocate(KIB) for _ in range(4)]
    pool.release(places[0])
    pool.release(places[2])
    assert pool.allocate(2 * KIB) is None  # as many bytes, but in two pieces
    pool.release(places[1])
    assert pool.allocate(3 * KIB) == 0


def test_all_freed_is_one_piece_again():
    pool = Pool(64 * KIB)
    places = [pool.allocate(n * KIB) for n in (3, 1, 7, 2, 5)]
    for i in (1, 4, 0, 2, 3):
        pool.release(places[i])
    assert (pool.in_use, pool.peak) == (0, 18 * KIB)
    assert pool.free == [(64 * KIB, 0)]


@pytest.mark.parametrize(("limit", "small"), [(64, 0), (128, 32), (256, 64), (512, 128), (8000, 128)])
def test_small_region(limit, small):
    assert small_region_bytes(limit * MIB) == small * MIB


def test_replay_needs_the_bytes_in_one_piece():
    """a and c leave two holes of 4 MiB around b; the 6 MiB of e fit by their sum only."""
    graph = step(
        placeholder(),
        op("a", "x", mib=4),
        op("b", "a", mib=4),
        op("c", "b", mib=4),
        op("d", "a", "c", mib=0.25),
        op("e", "d", mib=6),
        op("f", "b", "e", mib=0.25),
        resident_mib=1,
    )
    problem = reduce(graph, SECONDS)
    schedule = build(problem, {}, SECONDS)
    assert schedule.peak_bytes <= 14 * MIB
    assert not replay(problem, schedule, 14 * MIB, "single").fits
    fit = replay(problem, schedule, 24 * MIB, "single")
    assert fit.fits
    assert fit.peak_bytes >= schedule.peak_bytes


def test_replay_hands_a_forwarded_chunk_on():
    graph = step(placeholder(), op("a", "x", mib=4), op("b", "a", mib=4, type="Relu"), op("c", "b", mib=0.1))
    problem = reduce(graph, SECONDS)
    assert replay(problem, build(problem, {}, SECONDS), 8 * MIB + MIB // 2, "single").fits


def test_replay_without_room_for_the_weights():
    problem = reduce(step(placeholder(), op("a", "x"), resident_mib=9), SECONDS)
    assert not replay(problem, build(problem, {}, SECONDS), 4 * MIB, "single").fits
