"""The options of `lms3d.train --task segmentation`: how volumes of any organ are read, divided, shown and learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lms3d import cli
from lms3d.config import option
from lms3d.errors import InputError
from lms3d.tasks.volumes.options import VolumeConfig, by

MEDIAN = "median"


@dataclass(frozen=True, kw_only=True)
class SegmentationConfig(VolumeConfig):
    """The options of a run that learns the labels or the regions of any data set.

    Three kinds of grid: a cube to which each case is stretched (resolution); a box of voxels of one size (box and spacing); voxels
    of one size, of which each case has its own number, shown in patches (spacing and patch).
    """

    task: str = "segmentation"
    model: str = "isensee2017"
    loss: str = "dice_cross_entropy"

    spacing: str | None = option(
        None, "size of a voxel in mm, such as 0.8x0.8x2.5, or median: that of the data set (default: median with --box; otherwise "
        "each case is stretched to a cube)", type=cli.checked(cli.spacing, "spacing"), metavar="XxYxZ", predicts=True,
        planned=True,
    )  # fmt: skip

    # networks

    preset: str | None = option(
        None, "size of resenc: S, M (that of nnU-Net), L or XL (default: M)", choices=("S", "M", "L", "XL"),
        planned=True,
    )  # fmt: skip
    """See `lms3d.models.resenc`."""
    levels: int | None = option(
        None,
        "levels of the network, at most (default: each axis is halved down to four voxels)",
        type=cli.whole(2),
        metavar="N",
        planned=True,
    )
    """See `lms3d.models.topology`."""

    summary: ClassVar[str] = "any organ, in nnU-Net's or the Decathlon's layout"
    models: ClassVar[tuple[str, ...]] = ("isensee2017", "unet3d", "resenc")
    losses: ClassVar[tuple[str, ...]] = ("dice", "dice_cross_entropy")
    exclusive: ClassVar[tuple[tuple[str, str], ...]] = (*VolumeConfig.exclusive, ("resolution", "spacing"))
    named_by: ClassVar[tuple[str, ...]] = (*VolumeConfig.named_by, "spacing")

    step: ClassVar[int] = 2
    """The networks halve each axis as often as its number of voxels and its spacing allow."""

    @property
    def own_shapes(self) -> bool:
        """Whether each case has as many voxels as it needs, of which patches are shown."""
        return self.spacing is not None and self.box is None

    @property
    def spacing_mm(self) -> tuple[float, float, float] | None:
        """The size of a voxel; None: the median, or no fixed size."""
        if self.spacing in (None, MEDIAN):
            return None
        assert self.spacing is not None
        a, b, c = map(float, self.spacing.split("x"))
        return a, b, c

    def volume_shape(self, axes: int = 3) -> tuple[int, ...]:
        """The box, or the cube; a patch, if cases have their own shapes."""
        return self.patch_shape or super().volume_shape(axes) if self.own_shapes else super().volume_shape(axes)

    def volume_text(self, axes: int = 3) -> str:
        if not self.own_shapes:
            return super().volume_text(axes)
        return f"volumes of {self.spacing}" + (" mm" if self.spacing_mm else " spacing")

    def folder_name(self) -> str:
        if not self.own_shapes:
            return super().folder_name()
        return f"{self.model}-{self.spacing}-patch{by(self.patch_shape or ())}"

    def at_stage(self, resolution: int, epochs: int | None) -> SegmentationConfig:
        return replace(super().at_stage(resolution, epochs), spacing=None)

    def network_arguments(self) -> dict[str, Any]:
        sizes = {"preset": self.preset, "levels": self.levels}
        return {**super().network_arguments(), **{name: value for name, value in sizes.items() if value is not None}}

    def check(self, given: Mapping[str, Any]) -> None:
        if self.preset is not None and self.model != "resenc":
            raise InputError(f"--preset {self.preset}: is for --model resenc; leave it out, or take that model")
        if self.own_shapes and self.patch is None:
            raise InputError(
                f"--spacing {self.spacing}: every case then has a shape of its own; add --box XxYxZ, which gives all one shape, "
                "or --patch XxYxZ, which shows parts"
            )
        if self.own_shapes and self.stages:
            raise InputError("--stages trains whole cubes and --spacing parts of volumes; leave one of them out")
        super().check(given)
