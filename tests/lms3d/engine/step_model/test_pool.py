"""Limits in each kind of pool: what a plan may use of one, and what a schedule needs."""

from __future__ import annotations

import pytest

from lms3d.engine import tuning
from lms3d.engine.effort import Account
from lms3d.engine.step_model import replay
from lms3d.engine.step_model.pool import CPU_POOL, GPU_POOL, NO_POOL, POOLS
from lms3d.engine.step_model.replay import Placement
from tests.lms3d.engine.toy_graphs import MIB, swapped_over_a_chain


@pytest.mark.parametrize("pool", [CPU_POOL, GPU_POOL])
def test_a_pool_keeps_a_reserve_for_waste(monkeypatch, pool):
    """A planned schedule whose pieces take up nearly the whole pool does not count as fitting."""
    problem, schedule, _ = swapped_over_a_chain()
    limit = pool.needed_bytes(problem, schedule)
    assert pool.fits(problem, schedule, limit)
    full = Placement(True, int(limit * (1 - tuning.RESERVE_IN_TURN)) + 1)
    monkeypatch.setattr(replay, "place", lambda *_, **__: full)
    assert not pool.fits(problem, schedule, limit)


def test_an_unplanned_step_needs_room_for_an_accident():
    """Once, in every kind of pool: nobody holds its order."""
    problem, schedule, _ = swapped_over_a_chain()
    split = [CPU_POOL.needed_bytes(problem, schedule, planned=planned) for planned in (True, False)]
    single = [GPU_POOL.needed_bytes(problem, schedule, planned=planned) for planned in (True, False)]
    assert split[0] < split[1]
    assert single[0] < single[1]


def test_a_pool_shows_its_name_alone_which_is_what_keys_and_messages_hold():
    assert {name: repr(pool) for name, pool in POOLS.items()} == {
        "none": "Pool(name='none')",
        "single": "Pool(name='single')",
        "close": "Pool(name='close')",
        "split": "Pool(name='split')",
    }
    assert [pool.name for pool in POOLS.values() if pool.in_pieces] == ["single", "close", "split"]
    assert [pool.name for pool in POOLS.values() if pool.limited_cpu] == ["split"]


def test_without_a_pool_only_the_sum_of_bytes_counts():
    problem, schedule, _ = swapped_over_a_chain()
    limit = NO_POOL.needed_bytes(problem, schedule)
    assert NO_POOL.needed_bytes(problem, schedule, planned=False) == limit
    placed = NO_POOL.place(problem, schedule, limit)
    assert (placed.fits, placed.peak_bytes) == (True, schedule.peak_bytes)
    assert NO_POOL.usable_bytes(limit - MIB) < schedule.peak_bytes <= NO_POOL.usable_bytes(limit)


@pytest.mark.parametrize("pool", [NO_POOL, *(pool for pool in POOLS.values() if pool.in_pieces)])
@pytest.mark.parametrize("percent", [60, 90, 100, 110, 150, 400])
def test_nothing_is_too_much_if_and_only_if_a_schedule_fits(pool, percent):
    problem, schedule, _ = swapped_over_a_chain()
    limit = schedule.peak_bytes * percent // 100
    assert pool.unplaced_bytes(problem, schedule, limit).any() != pool.fits(problem, schedule, limit)


def test_counting_what_finds_no_piece_ends_when_it_is_enough_and_is_paid():
    problem, schedule, _ = swapped_over_a_chain()
    limit, whole, part = int(schedule.peak_bytes / (1 - GPU_POOL.reserve)) + 1, Account(), Account()
    most = GPU_POOL.unplaced_bytes(problem, schedule, limit, account=whole)
    some = GPU_POOL.unplaced_bytes(problem, schedule, limit, lambda unplaced: unplaced.any(), account=part)
    assert 0 < some.sum() < most.sum()
    assert (part.replays, whole.replays) == (1, tuning.PERTURBED + 1)
    assert 0 < part.seconds < whole.seconds
