"""The options of `lms3d.train --task brats`: how brain scans are read, divided, shown and learned."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from lms3d import cli
from lms3d.config import StagedConfig, flag, option
from lms3d.errors import InputError

MODELS = ("isensee2017", "unet3d")
_SWITCH = argparse.BooleanOptionalAction


@dataclass(frozen=True, kw_only=True)
class BratsConfig(StagedConfig):
    """The options of a run that learns tumours in brain scans."""

    task: str = "brats"
    model: str = "isensee2017"
    loss: str = "dice"

    box: tuple[int, int, int] | None = option(
        None, "voxels of 1 mm around the brain, such as 160x192x160, in place of a cube: nothing is resized",
        type=cli.checked(cli.box, "box"), metavar="XxYxZ", predicts=True,
    )  # fmt: skip
    patch: int | None = option(
        None, "train on cubes of side N cut from the volume, predict with a sliding window (default: the whole volume)",
        type=cli.checked(cli.resolution, "resolution"), metavar="N", predicts=True,
    )  # fmt: skip
    targets: str = option(
        "labels", "what the network learns: disjoint labels, or the nested regions that are scored (default: labels)",
        choices=("labels", "regions"), predicts=True,
    )  # fmt: skip
    """See `lms3d.data.brats.targets`."""
    labels: str | None = option(
        None, "what label values mean, such as brats2021, if file names do not tell", metavar="SCHEMA", predicts=True
    )
    """None takes the schema of the layout that is recognised."""
    anti_alias: bool = option(
        True, "before volumes are made smaller, remove detail that they cannot hold (default: on)",
        action=_SWITCH, before=False, predicts=True,
    )  # fmt: skip
    normalisation: str = option(
        "case", "intensities: z-scores inside each brain, or one mean and deviation for all, as the case study (default: case)",
        choices=("case", "global"), before="global", predicts=True,
    )  # fmt: skip
    """See `lms3d.data.brats.normalise`."""
    n4: bool = option(
        False, "remove bias fields (N4) of t1, t1ce and t2, once cropped: slow, done once per case (default: off)",
        action=_SWITCH, predicts=True,
    )  # fmt: skip

    split: Path | None = option(
        None, "split.json of another run to use (default: a random split by seed)", type=cli.path, metavar="FILE"
    )
    folds: int | None = option(
        None, "divide the cases into K parts (patients together, grades spread evenly), of which --fold validates",
        type=cli.whole(2), metavar="K",
    )  # fmt: skip
    fold: int = option(0, "the part that validates, 0 to K - 1 (default: 0)", type=cli.whole(0), metavar="I")
    validation_fraction: float = option(
        0.2, "share of cases for validation (default: 0.2)", type=cli.number(0, 1), metavar="F"
    )

    symmetries: str = option(
        "all", "the symmetries of --augment: all that keep the volume's shape, flips, or left and right alone (default: all)",
        choices=("all", "flips", "mirror"),
    )  # fmt: skip
    """See `lms3d.data.brats.symmetries`."""
    distort: tuple[str, ...] = option(
        (), "distort training samples: elastic, scale, intensity, gamma, noise, bias-field; a list, or all (default: none)",
        type=cli.checked(cli.names, "list"), metavar="NAME,..",
    )  # fmt: skip
    """See `lms3d.data.brats.distortions`."""
    deep_supervision: bool = option(
        False, "a loss for each deeper head of isensee2017, beside that of their sum (default: off)", action=_SWITCH
    )

    summary: ClassVar[str] = "tumours in brain scans"
    models: ClassVar[tuple[str, ...]] = MODELS
    losses: ClassVar[tuple[str, ...]] = ("dice", "dice_cross_entropy")
    exclusive: ClassVar[tuple[tuple[str, str], ...]] = (*StagedConfig.exclusive, ("resolution", "box"))
    named_by: ClassVar[tuple[str, ...]] = (*StagedConfig.named_by, "box", "patch")

    def volume_shape(self, axes: int = 3) -> tuple[int, ...]:
        """The box, or the cube."""
        return self.box or super().volume_shape(axes)

    def sample_shape(self, axes: int = 3) -> tuple[int, ...]:
        """A patch, or the whole volume."""
        return (self.patch,) * axes if self.patch else self.volume_shape(axes)

    def size_text(self, axes: int = 3) -> str:
        """ "192^3", "160x192x160" or "128^3 of 192^3": what a step works on."""
        return f"{self.patch}^{axes} of {self._volume_text(axes)}" if self.patch else self._volume_text(axes)

    def _volume_text(self, axes: int) -> str:
        return _by(self.box) if self.box else super().size_text(axes)

    def sides(self) -> dict[str, tuple[int, ...]]:
        return {**super().sides(), "box": self.box or (), "patch": (self.patch,) if self.patch is not None else ()}

    def folder_name(self) -> str:
        whole = f"{self.model}-{_by(self.box)}" if self.box else super().folder_name()
        return f"{whole}-patch{self.patch}" if self.patch else whole

    def network_arguments(self) -> dict[str, Any]:
        return {"separate_heads": True} if self.deep_supervision else {}

    def at_stage(self, resolution: int, epochs: int | None) -> BratsConfig:
        return replace(super().at_stage(resolution, epochs), box=None, patch=None)

    def check(self, given: Mapping[str, Any]) -> None:
        self._check_validation(given)
        if "symmetries" in given and not self.augment:
            raise InputError(
                f"--symmetries {self.symmetries}: --no-augment shows samples as they are; leave one of them out"
            )
        if self.distort:
            from lms3d.data.brats.distortions import check_names

            check_names(self.distort)
        if self.deep_supervision and self.model != "isensee2017":
            raise InputError(
                f"--deep-supervision: {self.model} has one head; leave it out, or take --model isensee2017"
            )
        self._check_patch()
        super().check(given)

    def _check_validation(self, given: Mapping[str, Any]) -> None:
        """InputError unless the options agree who validates."""
        if "fold" in given and not self.folds:
            raise InputError(f"--fold {self.fold}: without --folds there are none; leave one of them out")
        if self.folds and self.fold >= self.folds:
            last = self.folds - 1
            raise InputError(f"--fold {self.fold} of --folds {self.folds}: expected 0 to {last}; choose one of these")
        chosen = [name for name in ("split", "folds", "validation_fraction") if given.get(name) is not None]
        if len(chosen) > 1:
            first, second = map(flag, chosen[:2])
            raise InputError(f"{first} and {second}: each says who validates; leave one of them out")

    def _check_patch(self) -> None:
        if self.patch and self.patch > min(self.volume_shape()):
            raise InputError(
                f"--patch {self.patch}: expected at most the volume, {self._volume_text(3)}; choose a smaller one"
            )
        if self.stages and self.patch:
            raise InputError("--stages trains whole volumes and --patch parts of them; leave one of them out")


def _by(sides: tuple[int, ...]) -> str:
    return "x".join(map(str, sides))
