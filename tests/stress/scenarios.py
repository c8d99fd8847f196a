"""The commands that get the faults, and the files that each begins with."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.data.small_data import random_case, save, write_case
from tests.data.small_radiographs import many, write_set

NUMPY = ("lms3d.data.prepare", "lms3d.evaluate", "lms3d.tasks.brats.evaluate", "matplotlib.pyplot")
TENSORFLOW = (
    "tests.small_networks", "lms3d.train", "lms3d.predict", "lms3d.package", "lms3d.training.trainer",
    "lms3d.keras_step.callback", "lms3d.tasks.brats.predict", "lms3d.tasks.packages.package", "lms3d.tasks.chexnet.task",
    "matplotlib.pyplot",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A command in a folder that is watched. `{folder}` and `{data}` in its arguments are the places of this run."""

    module: str
    arguments: str
    again: str = ""
    """Arguments to add if the command is repeated after a fault."""
    after: str = ""
    """The scenario whose files this one begins with."""
    without: tuple[str, ...] = ()
    """The files of that scenario that are taken away."""
    beside: tuple[str, ...] = ()
    """Scenarios that do much of the same: a fault of one file at one place that they meet is not tried again in this one."""
    tried: bool = True
    """False for a scenario that only makes the files that another begins with."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that its child imports."""
        return NUMPY if self.module in NUMPY else TENSORFLOW

    def words(self, folder: Path, data: Path, *, again: bool = False) -> list[str]:
        """The arguments."""
        text = f"{self.arguments} {self.again if again else ''}"
        return [word.format(folder=folder, data=data) for word in text.split()]


_STEPS = "--steps-per-epoch 2 --validation-steps 1 --seed 3 --output {folder}/run --swap-dir {folder}/swap "
_SMALL = "--data {data}/volumes --model unet3d " + _STEPS
_TRAIN = "--resolution 16 --epochs 2 " + _SMALL
_SLABS = "--lms --slabs 2 --memory-limit 16MiB"
_STAGES = "--resolution 32 --stages 16:1 --epochs 1 --no-lms " + _SMALL
_RADIOGRAPHS = (
    "--task chexnet --data {data}/radiographs --model resnet50 --resolution 32 --batch-size 2 --epochs 2 --no-lms "
    + _STEPS
)
SWAP = "--lms --swap-tier disk --sync-mode 0 --swapout-threshold 10 --swapin-ahead 3 --swapin-groupby 0"


def _training(arguments: str, *, after: str = "", beside: tuple[str, ...] = (), tried: bool = True) -> Scenario:
    """A training. After another one the volumes are in the cache and the machine is measured, and no more."""
    return Scenario(
        module="lms3d.train",
        arguments=arguments,
        again="--resume",
        after=after,
        without=("run", "swap", "cache/plans") if after else (),
        beside=beside,
        tried=tried,
    )


SCENARIOS = {
    "cubes": Scenario(
        module="lms3d.data.prepare", arguments="{data}/volumes --resolution 16 --workers 1 --cache {folder}/cache/cubes"
    ),
    "cubes by two": Scenario(
        module="lms3d.data.prepare", arguments="{data}/volumes --resolution 16 --workers 2 --cache {folder}/cache/cubes"
    ),
    "skipped": Scenario(
        module="lms3d.data.prepare",
        arguments="{data}/damaged --resolution 16 --workers 1 --skip-bad --cache {folder}/cache/cubes",
    ),
    "shards": Scenario(
        module="lms3d.data.prepare",
        arguments="{data}/radiographs --resolution 32 --workers 1 --cache {folder}/cache/images",
    ),
    "train, first": _training(_TRAIN + "--no-lms", beside=("cubes", "train")),
    "train": _training(_TRAIN + "--no-lms", after="train, first"),
    "train swapping": _training(_TRAIN + SWAP, after="train, first", beside=("train",)),
    "train in slabs": _training(_TRAIN + _SLABS, after="train, first", beside=("train",)),
    "train in stages, first": _training(_STAGES, after="train, first", tried=False),
    "train in stages": _training(_STAGES, after="train in stages, first", beside=("train",)),
    "train on radiographs": _training(_RADIOGRAPHS, after="train, first", beside=("shards", "train")),
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
