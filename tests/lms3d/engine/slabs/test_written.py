"""Slabs as they are written: in options, in a run folder, in messages."""

from hypothesis import given
from hypothesis import strategies as st

from lms3d.engine.slabs import choice

SLABS = st.dictionaries(st.integers(0, 4), st.integers(2, 64)).map(lambda one: tuple(sorted(one.items())))


@given(SLABS)
def test_what_is_written_is_read_again(slabs):
    assert choice.numbers(choice.text(slabs)) == slabs


@given(SLABS)
def test_a_mapping_says_the_same(slabs):
    assert choice.parse(dict(slabs)) == choice.parse(slabs) == slabs


def test_the_error_of_a_small_limit_says_what_was_tried():
    assert 'slabs="off"' in choice.note(choice.OFF, ())
    assert choice.note(choice.AUTO, ()) == ""
    assert "down to 8/4" in choice.note(choice.AUTO, ((0, 8), (1, 4)))
    assert "4/1" in choice.note(((0, 4),), ((0, 4),))
