"""The commands that the faults befall, each with what must lie there before it begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.data.small_data import random_case, write_case
from tests.data.small_radiographs import many, write_set

NUMPY = ("data.prepare", "lms3d.evaluate", "lms3d.tasks.brats.evaluate", "matplotlib.pyplot")
TENSORFLOW = (
    "tests.faults.small_network", "lms3d.train", "lms3d.predict", "lms3d.package", "lms3d.training.trainer",
    "lms3d.keras_step.callback", "lms3d.tasks.brats.predict", "lms3d.tasks.packages.package", "matplotlib.pyplot",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A command in a folder that is watched. `{folder}` and `{data}` in its arguments are the places of this run."""

    module: str
    arguments: str
    again: str = ""
    """What to add where the command is repeated after a fault."""
    after: str = ""
    """The scenario that leaves what this one begins with."""
    without: tuple[str, ...] = ()
    """What of that is taken away."""

    @property
    def modules(self) -> tuple[str, ...]:
        """What its server imports."""
        return NUMPY if self.module in NUMPY else TENSORFLOW

    def words(self, folder: Path, data: Path, *, again: bool = False) -> list[str]:
        """The arguments."""
        text = f"{self.arguments} {self.again if again else ''}"
        return [word.format(folder=folder, data=data) for word in text.split()]


_TRAIN = (
    "--data {data}/volumes --resolution 16 --model unet3d --epochs 2 --steps-per-epoch 2 --validation-steps 1 --seed 3 "
    "--output {folder}/run --swap-dir {folder}/swap "
)
_SWAP = "--lms --swap-tier disk --sync-mode 0 --swapout-threshold 10 --swapin-ahead 3 --swapin-groupby 0"

SCENARIOS = {
    "cubes": Scenario(
        module="data.prepare", arguments="{data}/volumes --resolution 16 --workers 1 --cache {folder}/cache"
    ),
    "cubes by two": Scenario(
        module="data.prepare", arguments="{data}/volumes --resolution 16 --workers 2 --cache {folder}/cache"
    ),
    "skipped": Scenario(
        module="data.prepare", arguments="{data}/damaged --resolution 16 --workers 1 --skip-bad --cache {folder}/cache"
    ),
    "shards": Scenario(
        module="data.prepare", arguments="{data}/radiographs --resolution 32 --workers 1 --cache {folder}/cache"
    ),
    "train": Scenario(module="lms3d.train", arguments=_TRAIN + "--no-lms", again="--resume"),
    "train swapping, first": Scenario(module="lms3d.train", arguments=_TRAIN + _SWAP, again="--resume"),
    "train swapping": Scenario(
        module="lms3d.train",
        arguments=_TRAIN + _SWAP,
        again="--resume",
        after="train swapping, first",  # the machine is measured, the volumes are there
        without=("run", "swap", "cache/plans"),
    ),
    "predict": Scenario(module="lms3d.predict", arguments="{folder}/run", after="train"),
    "package": Scenario(module="lms3d.package", arguments="{folder}/run --output {folder}/run.lms3d", after="train"),
    "evaluate": Scenario(module="lms3d.evaluate", arguments="{folder}/run/predictions", after="predict"),
}


def make_data(folder: Path) -> None:
    """Five random brains, the same with one damaged, and a handful of radiographs."""
    for number in range(1, 6):
        write_case(folder / "volumes" / f"BraTS20_Training_{number:03d}", random_case(number))
    shutil.copytree(folder / "volumes", folder / "damaged")
    damaged = next((folder / "damaged" / "BraTS20_Training_002").glob("*_t1.nii.gz"))
    damaged.write_bytes(damaged.read_bytes()[:500])
    write_set(folder / "radiographs", many(12))
