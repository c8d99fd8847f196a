"""Keras is imported without the packages that it can do without; nobody else notices."""

import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from lms3d.keras_backend import OPTIONAL, without_optional_packages


def test_within_the_block_they_are_missing(monkeypatch):
    for name in OPTIONAL:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with without_optional_packages(), pytest.raises(ImportError):
        import_module("sklearn")
    assert not set(OPTIONAL) & sys.modules.keys()
    assert all(map(find_spec, OPTIONAL))


def test_what_is_imported_already_stays(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", sys)
    with without_optional_packages():
        import pandas
    assert pandas is sys
    assert sys.modules["pandas"] is sys
