"""Registers the layers, losses and metrics of lms3d with Keras, so that `keras.models.load_model` finds them.

`import lms3d` imports neither Keras nor TensorFlow. Where they are there already, the registration happens at once; else right
after the first import of either, and of the outer one if one imports the other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from lms3d import own_packages

LIBRARIES = ("keras", "tensorflow")
HOLDERS = ("models.layers", "lms3d.scoring.keras_dice", "lms3d.scoring.findings", "lms3d.scoring.losses")
"""Modules whose import registers what they hold."""


def register() -> None:
    """Now, if both libraries are there; else once they are."""
    if all(name in sys.modules for name in LIBRARIES):
        _import_holders()
    else:
        sys.meta_path.insert(0, _Waiting())


def _import_holders() -> None:
    """Leaves `models` out where a package of the user's own has that name."""
    for name in HOLDERS:
        if name.startswith("lms3d.") or own_packages.hidden_by("models") is None:
            import_module(name)


class _Waiting:
    """A finder that lets others find the libraries, and registers once both are imported."""

    def __init__(self) -> None:
        self._importing = 0

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name not in LIBRARIES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self._watch(spec)
        return spec

    def _watch(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            self._importing += 1
            try:
                execute(module)
            finally:
                self._importing -= 1
            if not self._importing and self in sys.meta_path and all(one in sys.modules for one in LIBRARIES):
                sys.meta_path.remove(self)
                _import_holders()

        loader.exec_module = executed
