"""The options of `lms3d.train --task brats`: how brain scans are read, divided, shown and learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lms3d.config import option
from lms3d.tasks.volumes.options import SWITCH, VolumeConfig

MODELS = ("isensee2017", "unet3d", "resenc")


@dataclass(frozen=True, kw_only=True)
class BratsConfig(VolumeConfig):
    """The options of a run that learns tumours in brain scans."""

    task: str = "brats"
    model: str = "isensee2017"
    loss: str = "dice"

    targets: str = option(
        "labels", "what the network learns: disjoint labels, or the nested regions that are scored (default: labels)",
        choices=("labels", "regions"), predicts=True, planned=True,
    )  # fmt: skip
    """See `lms3d.data.volumes.targets`."""
    labels: str | None = option(
        None, "what label values mean, such as brats2021, if file names do not tell", metavar="SCHEMA", predicts=True,
        planned=True,
    )  # fmt: skip
    """None takes the schema of the layout that is recognised."""
    normalisation: str = option(
        "case", "intensities: z-scores inside each brain, or one mean and deviation for all, as the case study (default: case)",
        choices=("case", "global"), before="global", predicts=True,
    )  # fmt: skip
    """See `lms3d.data.volumes.normalise`."""
    n4: bool = option(
        False, "remove bias fields (N4) of t1, t1ce and t2, once cropped: slow, done once per case (default: off)",
        action=SWITCH, predicts=True,
    )  # fmt: skip

    summary: ClassVar[str] = "tumours in brain scans"
    models: ClassVar[tuple[str, ...]] = MODELS
    losses: ClassVar[tuple[str, ...]] = ("dice", "dice_cross_entropy")
