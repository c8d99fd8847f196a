"""A rank that keeps the others waiting is reported once, and only if the wait is unusual."""

from __future__ import annotations

import pytest

from lms3d.ranks import lateness
from lms3d.ranks.lateness import Lateness


@pytest.fixture
def two(monkeypatch) -> Lateness:
    """Two ranks that have exchanged something every 3 s, until 60 s."""
    monkeypatch.setattr(lateness, "LEAST_SECONDS", 10.0)
    known = Lateness()
    for exchange in range(1, 21):
        for rank in (0, 1):
            known.note(rank, exchange, 3.0 * exchange)
            assert known.late(3.0 * exchange) is None
    return known


def test_ranks_that_are_side_by_side_may_take_their_time(two):
    assert two.late(10_000.0) is None  # they validate, or save


@pytest.mark.parametrize("late", [0, 1])
def test_who_has_not_come_to_an_exchange_is_named_once(two, late):
    two.note(1 - late, 21, 63.0)
    assert two.late(63.0 + 59.0) is None  # less than twenty times the usual
    found = two.late(63.0 + 61.0)
    assert (found.rank, found.exchange, found.waited_seconds, found.usual_seconds) == (late, 21, 61.0, 3.0)
    assert two.late(500.0) is None
    two.note(late, 21, 600.0)
    assert two.late(601.0) is None
    two.note(1 - late, 22, 603.0)
    assert two.late(700.0).exchange == 22  # late again


def test_the_usual_time_counts_where_it_is_long(two, monkeypatch):
    monkeypatch.setattr(lateness, "LEAST_SECONDS", 100.0)
    two.note(0, 21, 63.0)
    assert two.late(63.0 + 99.0) is None
    assert two.late(63.0 + 101.0) is not None


def test_before_anything_is_usual_nobody_is_late():
    known = Lateness()
    known.note(0, 1, 0.0)
    known.note(1, 2, 5.0)
    assert known.late(10_000.0) is None


def test_who_has_left_is_not_waited_for(two):
    two.note(0, 21, 63.0)
    two.forget(1)
    assert two.late(10_000.0) is None


def test_several_exchanges_between_two_looks_are_shared_out(monkeypatch):
    monkeypatch.setattr(lateness, "LEAST_SECONDS", 1.0)
    known = Lateness()
    for second in range(1, 20):
        known.note(0, 10 * second, float(second))
        known.note(1, 10 * second, float(second))
    known.note(0, 191, 19.5)
    assert known.late(19.5 + 2.5).usual_seconds == pytest.approx(0.1)
