"""Registers the layers, losses and metrics of lms3d with Keras, so that `keras.models.load_model` finds them.

`import lms3d` imports neither Keras nor TensorFlow. If both have been imported, the registration happens at once, otherwise as
soon as both are. If one of them imports the other, it happens after the outer import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import dropwhile
from types import ModuleType
from typing import Any

from lms3d import own_packages

LIBRARIES = ("keras", "tensorflow")
HOLDERS = ("lms3d.models.layers", "lms3d.scoring.keras_dice", "lms3d.scoring.findings", "lms3d.scoring.losses")
"""The modules that register their classes with Keras when they are imported."""


def register() -> None:
    """Registers now, if both libraries have been imported, otherwise as soon as they have."""
    if all(name in sys.modules for name in LIBRARIES):
        _import_holders()
    else:
        sys.meta_path.insert(0, _Waiting())


def _import_holders() -> None:
    """Imports the modules that register classes; leaves out `models` if a package of the user's has that name."""
    for name in HOLDERS:
        if name.startswith("lms3d.") or own_packages.hidden_by("models") is None:
            import_module(name)


class _Waiting:
    """An import finder that lets other finders find the libraries, and registers once both are imported."""

    def __init__(self) -> None:
        self._importing = 0

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec of the next finder that knows the library: editable installs and import hooks have finders of their own."""
        if name not in LIBRARIES:
            return None
        after = list(dropwhile(lambda finder: finder is not self, sys.meta_path))[1:]
        specs = (finder.find_spec(name, path, target) for finder in after if hasattr(finder, "find_spec"))
        spec: Any = next(filter(None, specs), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Watched(spec.loader, self)
        return spec

    @contextmanager
    def importing(self) -> Iterator[None]:
        """A block around the execution of a library, which may import the other."""
        self._importing += 1
        try:
            yield
        finally:
            self._importing -= 1
        if not self._importing and self in sys.meta_path and all(name in sys.modules for name in LIBRARIES):
            sys.meta_path.remove(self)
            _import_holders()


class _Watched:
    """Replaces the loader of a library until the library is executed."""

    def __init__(self, loader: Any, waiting: _Waiting) -> None:
        self._loader, self._waiting = loader, waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._waiting.importing():
            self._loader.exec_module(module)
