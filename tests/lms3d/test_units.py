import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms3d.errors import InputError
from lms3d.units import format_seconds, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("6GiB", 6 * 2**30), ("900MiB", 900 * 2**20), ("4GB", 4 * 10**9), ("1.5g", 1.5 * 2**30), (" 1 kb", 1000), (7, 7)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "6 gigs", "-1GiB", "0", "1e9", "nan", 0, -5])
def test_not_sizes(text):
    with pytest.raises(InputError, match="is not a size"):
        parse_size(text)


@given(st.integers(1, 2**50))
def test_a_formatted_size_means_nearly_the_same(size):
    assert parse_size(format_size(size).replace(" ", "")) == pytest.approx(size, rel=0.006, abs=1)


def test_seconds():
    texts = [format_seconds(s) for s in (0.0421, 7.25, 59.96, 754, 3599.7, 9000)]
    assert texts == ["42 ms", "7.2 s", "1 min 00 s", "12 min 34 s", "1 h 00 min", "2 h 30 min"]
