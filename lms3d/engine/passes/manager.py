"""Runs passes: the one place from which a graph is edited."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from lms3d.engine.passes import NORMALISING
from lms3d.engine.passes.base import Function, Pass, Target

log = logging.getLogger("lms3d")


def run(function: Function, passes: Iterable[Pass]) -> tuple[str, ...]:
    """Runs passes on the graph of `function`, one after the other; returns the names of passes that changed it.

    RuntimeError if the graph is not what a pass requires, or not what it promised.
    """
    changed: list[str] = []
    for one in passes:
        one.requires(function)
        if one.run(function):
            one.ensures(function)
            changed.append(one.name)
            log.debug("lms: pass %s", one)
    return tuple(changed)


def normalise(function: Function, target: Target) -> tuple[str, ...]:
    """Runs the passes that a step gets before it is captured; returns the names of passes that changed its graph."""
    passes = (NORMALISING[name](target) for name in NORMALISING.names)
    return run(function, [one for one in passes if one.applies])
