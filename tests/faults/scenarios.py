"""The commands that the faults befall, each with what must lie there before it begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.data.small_data import random_case, save, write_case
from tests.data.small_radiographs import many, write_set

NUMPY = ("data.prepare", "lms3d.evaluate", "lms3d.tasks.brats.evaluate", "matplotlib.pyplot")
TENSORFLOW = (
    "tests.faults.small_network", "lms3d.train", "lms3d.predict", "lms3d.package", "lms3d.training.trainer",
    "lms3d.keras_step.callback", "lms3d.tasks.brats.predict", "lms3d.tasks.packages.package", "lms3d.tasks.chexnet.task",
    "matplotlib.pyplot",
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


_STEPS = "--steps-per-epoch 2 --validation-steps 1 --seed 3 --output {folder}/run --swap-dir {folder}/swap "
_SMALL = "--data {data}/volumes --model unet3d " + _STEPS
_TRAIN = "--resolution 16 --epochs 2 " + _SMALL
_SLABS = "--lms --slabs 2 --memory-limit 16MiB"
SWAP = "--lms --swap-tier disk --sync-mode 0 --swapout-threshold 10 --swapin-ahead 3 --swapin-groupby 0"

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
    "train swapping, first": Scenario(module="lms3d.train", arguments=_TRAIN + SWAP, again="--resume"),
    "train swapping": Scenario(
        module="lms3d.train",
        arguments=_TRAIN + SWAP,
        again="--resume",
        after="train swapping, first",  # the machine is measured, the volumes are there
        without=("run", "swap", "cache/plans"),
    ),
    "train in stages": Scenario(
        module="lms3d.train", arguments="--resolution 32 --stages 16:1 --epochs 1 --no-lms " + _SMALL, again="--resume"
    ),
    "train in slabs, first": Scenario(module="lms3d.train", arguments=_TRAIN + _SLABS, again="--resume"),
    "train in slabs": Scenario(
        module="lms3d.train",
        arguments=_TRAIN + _SLABS,
        again="--resume",
        after="train in slabs, first",
        without=("run", "swap", "cache/plans"),
    ),
    "train on radiographs": Scenario(
        module="lms3d.train",
        arguments="--task chexnet --data {data}/radiographs --model resnet50 --resolution 32 --batch-size 2 --epochs 2 --no-lms "
        + _STEPS,
        again="--resume",
    ),
    "predict": Scenario(module="lms3d.predict", arguments="{folder}/run", after="train"),
    "package": Scenario(module="lms3d.package", arguments="{folder}/run --output {folder}/run.lms3d", after="train"),
    "predict with a package": Scenario(
        module="lms3d.predict",
        arguments="{folder}/run.lms3d --data {data}/volumes --output {folder}/predictions",
        after="package",
    ),
    "evaluate": Scenario(module="lms3d.evaluate", arguments="{folder}/run/predictions", after="predict"),
    "evaluate label maps": Scenario(
        module="lms3d.evaluate", arguments="{data}/label-maps --truth {data}/volumes --output {folder}/scores"
    ),
}


def make_data(folder: Path) -> None:
    """Five random brains, the same with one damaged, another program's label maps of them, and a handful of radiographs."""
    for number in range(1, 6):
        name = f"BraTS20_Training_{number:03d}"
        write_case(folder / "volumes" / name, random_case(number))
        save(np.roll(random_case(number)["truth"], 1, axis=0), folder / "label-maps" / f"{name}.nii.gz")
    shutil.copytree(folder / "volumes", folder / "damaged")
    damaged = next((folder / "damaged" / "BraTS20_Training_002").glob("*_t1.nii.gz"))
    damaged.write_bytes(damaged.read_bytes()[:500])
    write_set(folder / "radiographs", many(12))
