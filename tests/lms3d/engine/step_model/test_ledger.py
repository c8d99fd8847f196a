"""The ledger of live bytes, against tables by hand."""

from __future__ import annotations

import pytest

from lms3d.engine.step_model import ledger
from lms3d.engine.step_model.ledger import Block

SPANS = [Block(4, 0, 2), Block(2, 1, 3), Block(0, 0, 3), Block(8, 3, 3)]


def test_live_bytes_count_both_ends():
    assert ledger.live_bytes(SPANS, 4).tolist() == [4, 6, 6, 10]
    assert ledger.live_bytes(SPANS, 6).tolist() == [4, 6, 6, 10, 0, 0]
    assert ledger.live_bytes([], 2).tolist() == [0, 0]
    assert ledger.live_bytes([], 0).size == 0


def test_bytes_beyond_32_bits_are_exact():
    huge = (1 << 40) + 1
    assert ledger.live_bytes([Block(huge, 0, 1), Block(huge, 1, 1)], 2).tolist() == [huge, 2 * huge]


@pytest.mark.parametrize(("event", "live"), [(0, [0]), (1, [0, 1]), (3, [1, 3])])
def test_who_is_live(event, live):
    assert ledger.at(SPANS, event) == [SPANS[i] for i in live]


def test_who_starts_and_who_ends():
    starts, ends = ledger.by_event(SPANS, 4)
    assert starts == [[0, 2], [1], [], [3]]
    assert ends == [[], [], [0], [1, 2, 3]]
