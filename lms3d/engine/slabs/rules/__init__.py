"""How each kind of op works on slabs. A new rule is a function with `@rule("Type", ...)` in one of these files, or in a new one
that is named here."""

from __future__ import annotations

from lms3d.engine.slabs.rules import (  # noqa: F401 -- each adds its rules
    arrays,
    batches,
    convolution,
    elementwise,
    fused,
    normalisation,
    pooling,
    products,
    random,
    reduction,
    resize,
    shapes,
    slices,
    streams,
)
from lms3d.engine.slabs.rules.registry import RULES

__all__ = ["RULES"]
