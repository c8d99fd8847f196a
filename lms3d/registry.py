"""Registries of what people can add by name: planners, swap tiers, tasks, metric columns.

    PLANNERS: Registry[Planner] = Registry("planner", hybrid="lms3d.engine.planners.hybrid:Hybrid", off="...")

    @PLANNERS.register("mine")
    class Mine: ...

Entries named in the constructor are imported on first use, so that a command line can list all names at no cost.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Generic, TypeVar

from lms3d.errors import InputError

T = TypeVar("T")
Entry = TypeVar("Entry")


class Registry(Generic[T]):
    """Entries by name. kind: the noun for an entry in messages. built_in: name -> "module:attribute"."""

    def __init__(self, kind: str, **built_in: str) -> None:
        self.kind = kind
        self._places: dict[str, str] = dict(built_in)
        self._loaded: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """A decorator that adds a class, function or value under `name`. ValueError if the name is taken."""
        if name in self:
            raise ValueError(f"{self.kind} {name!r}: the name is taken; choose another")

        def add(entry: Entry) -> Entry:
            self._loaded[name] = entry
            return entry

        return add

    def place(self, name: str, place: str) -> None:
        """Adds an entry that is imported from "module:attribute" on first use. ValueError if the name is taken."""
        if name in self:
            raise ValueError(f"{self.kind} {name!r}: the name is taken; choose another")
        self._places[name] = place

    def remove(self, name: str) -> None:
        """Removes an entry that was registered or placed. KeyError if there is none of this name."""
        if name not in self:
            raise KeyError(name)
        self._loaded.pop(name, None)
        self._places.pop(name, None)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the built-in ones first."""
        return tuple(dict.fromkeys([*self._places, *self._loaded]))

    def __contains__(self, name: object) -> bool:
        return name in self._places or name in self._loaded

    def __getitem__(self, name: str) -> T:
        """The entry of this name, imported now if need be. InputError, which lists all names, if there is none."""
        if name not in self:
            raise InputError(f"{self.kind} {name!r}: expected one of {', '.join(self.names)}")
        if name not in self._loaded:
            module, _, attribute = self._places[name].partition(":")
            self._loaded[name] = getattr(import_module(module), attribute)
        entry: T = self._loaded[name]
        return entry
