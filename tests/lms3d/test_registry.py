import sys

import pytest

from lms3d.errors import InputError
from lms3d.registry import Registry


def test_what_is_built_in_is_imported_when_it_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "a_module_of_its_own.py").write_text("thing = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[int] = Registry("number", three="a_module_of_its_own:thing")
    assert registry.names == ("three",)
    assert "a_module_of_its_own" not in sys.modules
    assert registry["three"] == 3


def test_what_is_registered_has_a_name_of_its_own():
    registry: Registry[object] = Registry("shape", line="somewhere:else")

    @registry.register("round")
    class Round: ...

    assert registry["round"] is Round
    assert registry.names == ("line", "round")
    for name in registry.names:
        with pytest.raises(ValueError, match="taken"):
            registry.register(name)
    registry.remove("round")
    assert "round" not in registry


def test_what_is_placed_later_is_imported_when_it_is_asked_for():
    registry: Registry[object] = Registry("shape", line="somewhere:else")
    registry.place("round", "nowhere.at_all:Round")
    assert registry.names == ("line", "round")
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        registry["round"]
    with pytest.raises(ValueError, match="taken"):
        registry.place("line", "other:one")
    registry.remove("round")
    assert "round" not in registry
    with pytest.raises(KeyError):
        registry.remove("round")


def test_an_unknown_name_is_told_with_those_that_there_are():
    with pytest.raises(InputError, match="shape 'square': expected one of line, round"):
        Registry("shape", line="a:b", round="c:d")["square"]
