"""The options that tasks on volumes share: how volumes are read, divided and shown."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from lms3d import cli
from lms3d.config import StagedConfig, flag, option
from lms3d.errors import InputError

SWITCH = argparse.BooleanOptionalAction
V = TypeVar("V", bound="VolumeConfig")


@dataclass(frozen=True, kw_only=True)
class VolumeConfig(StagedConfig):
    """The options of a run that learns from volumes."""

    box: tuple[int, int, int] | None = option(
        None, "voxels of 1 mm around the brain, or of --spacing, such as 160x192x160, in place of a cube",
        type=cli.checked(cli.sides, "box"), metavar="XxYxZ", predicts=True, planned=True,
    )  # fmt: skip
    patch: int | tuple[int, int, int] | None = option(
        None, "train on cubes of side N, or on boxes XxYxZ, cut from the volume; validate and predict whole volumes with a sliding "
        "window (default: the whole volume)", type=cli.checked(cli.patch, "patch"), metavar="N", predicts=True, planned=True,
    )  # fmt: skip
    anti_alias: bool = option(
        True, "before volumes are made smaller, remove detail that they cannot hold (default: on)",
        action=SWITCH, before=False, predicts=True,
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
    """See `lms3d.data.volumes.symmetries`."""
    distort: tuple[str, ...] = option(
        (), "distort training samples: elastic, scale, intensity, gamma, noise, bias-field; a list, or all (default: none)",
        type=cli.checked(cli.names, "list"), metavar="NAME,..",
    )  # fmt: skip
    """See `lms3d.data.volumes.distortions`."""
    deep_supervision: bool = option(
        False,
        "a loss for each deeper head of isensee2017 or resenc, beside that of the finest (default: off)",
        action=SWITCH,
        planned=True,
    )

    exclusive: ClassVar[tuple[tuple[str, str], ...]] = (*StagedConfig.exclusive, ("resolution", "box"))
    named_by: ClassVar[tuple[str, ...]] = (*StagedConfig.named_by, "box", "patch")
    step: ClassVar[int] = 16
    """The sides of boxes and patches are multiples of this, since the networks halve them four times."""
    supervised: ClassVar[tuple[str, ...]] = ("isensee2017", "resenc")
    """The networks with deeper heads, for --deep-supervision."""

    def volume_shape(self, axes: int = 3) -> tuple[int, ...]:
        """The box, or the cube."""
        return self.box or super().volume_shape(axes)

    def sample_shape(self, axes: int = 3) -> tuple[int, ...]:
        """A patch, or the whole volume."""
        return self.patch_shape or self.volume_shape(axes)

    @property
    def patch_shape(self) -> tuple[int, int, int] | None:
        """The sides of a patch; None for the whole volume."""
        return (self.patch,) * 3 if isinstance(self.patch, int) else self.patch

    def size_text(self, axes: int = 3) -> str:
        """ "192^3", "160x192x160" or "128^3 of 192^3": what a step works on."""
        return f"{self.patch_text} of {self.volume_text(axes)}" if self.patch else self.volume_text(axes)

    @property
    def patch_text(self) -> str:
        """ "128^3" or "128x128x64"; empty for the whole volume."""
        return f"{self.patch}^3" if isinstance(self.patch, int) else by(self.patch or ())

    def volume_text(self, axes: int = 3) -> str:
        """ "192^3" or "160x192x160": a whole volume."""
        return by(self.box) if self.box else super().size_text(axes)

    def sides(self) -> dict[str, tuple[int, ...]]:
        return {**super().sides(), "box": self.box or (), "patch": self.patch_shape or ()}

    def folder_name(self) -> str:
        whole = f"{self.model}-{by(self.box)}" if self.box else super().folder_name()
        sides = (self.patch,) if isinstance(self.patch, int) else self.patch
        return f"{whole}-patch{by(sides)}" if sides else whole

    def network_arguments(self) -> dict[str, Any]:
        return {"separate_heads": True} if self.deep_supervision else {}

    def at_stage(self: V, resolution: int, epochs: int | None) -> V:
        return replace(super().at_stage(resolution, epochs), box=None, patch=None)

    def check(self, given: Mapping[str, Any]) -> None:
        self._check_validation(given)
        if "symmetries" in given and not self.augment:
            raise InputError(
                f"--symmetries {self.symmetries}: --no-augment shows samples as they are; leave one of them out"
            )
        if self.distort:
            from lms3d.data.volumes.distortions import check_names

            check_names(self.distort)
        if self.deep_supervision and self.model not in self.supervised:
            other = " or ".join(self.supervised)
            raise InputError(f"--deep-supervision: {self.model} has one head; leave it out, or take --model {other}")
        self._check_sides()
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

    def _check_sides(self) -> None:
        """InputError for a box or a patch that the networks cannot take."""
        for name in ("box", "patch"):
            for side in self.sides()[name]:
                try:
                    cli.require_side(side, self.step)
                except InputError as error:
                    raise InputError(f"{flag(name)}: {error}") from None

    def _check_patch(self) -> None:
        sides = zip(self.patch_shape or (), self.volume_shape(), strict=False)
        if any(side > whole for side, whole in sides):
            raise InputError(
                f"--patch {self.patch_text.removesuffix('^3')}: expected at most the volume, {self.volume_text()}; choose a "
                "smaller one"
            )
        if self.stages and self.patch:
            raise InputError("--stages trains whole volumes and --patch parts of them; leave one of them out")


def by(sides: tuple[int, ...]) -> str:
    """The sides as text: "160x192x160"."""
    return "x".join(map(str, sides))
