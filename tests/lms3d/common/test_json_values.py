"""JSON of others is read within bounds."""

import json

import pytest

from lms3d.common import json_values


def test_json_of_somebody_else_may_not_be_deep():
    """Whatever the limit of recursion: a deeper text would end the process."""
    assert json_values.parse(b'{"a": [1, {"b": []}]}') == {"a": [1, {"b": []}]}
    for text in ("[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match="nested deeper than 100 levels"):
            json_values.parse(text)


def test_brackets_in_names_do_not_nest():
    names = ['a "[" of the left', "{" * 5, "]" * 300]
    assert json_values.parse(json.dumps(names * 200)) == names * 200
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        json_values.parse("[" + json.dumps("]" * 300) + ", " + "[" * 101)


def test_a_key_twice_is_refused_wherever_it_is():
    for text in ('{"labels": {"liver": 1, "spleen": 2, "liver": 3}}', '[{"liver": 1, "liver": 1}]'):
        with pytest.raises(ValueError, match="key 'liver' twice in one object"):
            json_values.parse(text)
    assert json_values.parse('{"a": {"a": 1}, "b": {"a": 1}}') == {"a": {"a": 1}, "b": {"a": 1}}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_whatever_an_editor_saves_is_read(encoding):
    assert json_values.parse('{"scan": "Brain 192³"}'.encode(encoding)) == {"scan": "Brain 192³"}
    with pytest.raises(ValueError, match="codec can't decode"):
        json_values.parse("³".encode("latin-1"))
