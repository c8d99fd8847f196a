"""How training samples are shown; stated without TensorFlow, which is started later than this is decided."""

from __future__ import annotations

from dataclasses import dataclass

from data.brats.geometry import Shape


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """How samples are shown in training."""

    symmetries: str = "all"
    """One of `symmetries.SETS`."""
    distortions: tuple[str, ...] = ()
    """Names in `distortions.DISTORTIONS`."""
    patch: Shape | None = None
    """Size of the part that is shown; None: the whole volume."""
