"""Named things of one kind that people add: planners, swap tiers, tasks, metric columns.

    PLANNERS: Registry[Planner] = Registry("planner", hybrid="lms3d.engine.planners.hybrid:Hybrid", off="...")

    @PLANNERS.register("mine")
    class Mine: ...

What is named in the constructor is imported when it is first asked for: a command line knows all names at no cost.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Generic, TypeVar

from lms3d.errors import InputError

T = TypeVar("T")
Made = TypeVar("Made")


class Registry(Generic[T]):
    """kind: what messages call one of them. built_in: name -> "module:attribute"."""

    def __init__(self, kind: str, **built_in: str) -> None:
        self.kind = kind
        self._places: dict[str, str] = dict(built_in)
        self._found: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[Made], Made]:
        """Decorator: adds a class, function or value under `name`. ValueError where the name is taken."""
        if name in self:
            raise ValueError(f"{self.kind} {name!r}: the name is taken; choose another")

        def add(value: Made) -> Made:
            self._found[name] = value
            return value

        return add

    def place(self, name: str, place: str) -> None:
        """Adds what is imported from "module:attribute" when it is first asked for. ValueError where the name is taken."""
        if name in self:
            raise ValueError(f"{self.kind} {name!r}: the name is taken; choose another")
        self._places[name] = place

    def remove(self, name: str) -> None:
        """Takes back what was registered or placed."""
        if name not in self:
            raise KeyError(name)
        self._found.pop(name, None)
        self._places.pop(name, None)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, those that are built in first."""
        return tuple(dict.fromkeys([*self._places, *self._found]))

    def __contains__(self, name: object) -> bool:
        return name in self._places or name in self._found

    def __getitem__(self, name: str) -> T:
        """InputError, with the names that there are, where this is none of them."""
        if name not in self:
            raise InputError(f"{self.kind} {name!r}: expected one of {', '.join(self.names)}")
        if name not in self._found:
            module, _, attribute = self._places[name].partition(":")
            self._found[name] = getattr(import_module(module), attribute)
        found: T = self._found[name]
        return found
