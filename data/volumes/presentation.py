"""The options for showing training samples. No TensorFlow here, because they are decided before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from lms3d.data.volumes.geometry import Shape


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """The way in which samples are shown in training."""

    symmetries: str = "all"
    """One of `symmetries.SETS`."""
    distortions: tuple[str, ...] = ()
    """Some names in `distortions.DISTORTIONS`."""
    patch: Shape | None = None
    """The size of the part that is shown; None for the whole volume."""
    evenly: bool = False
    """Whether a patch with foreground holds each label of its case with the same chance, as in nnU-Net. If not, each voxel of the
    foreground has the same chance."""
