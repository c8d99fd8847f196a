"""The options for showing training samples. No TensorFlow here, because they are decided before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from lms3d.data.brats.geometry import Shape


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """The way in which samples are shown in training."""

    symmetries: str = "all"
    """One of `symmetries.SETS`."""
    distortions: tuple[str, ...] = ()
    """Some names in `distortions.DISTORTIONS`."""
    patch: Shape | None = None
    """The size of the part that is shown; None for the whole volume."""
