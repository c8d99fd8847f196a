"""The layout of the Medical Segmentation Decathlon, Task01_BrainTumour: one 4D file per case.

Task01_BrainTumour/imagesTr/BRATS_001.nii.gz    labelsTr/BRATS_001.nii.gz
                   imagesTs/BRATS_485.nii.gz    without truth; cases only where there is no imagesTr
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data.brats.case import Case

VOLUMES = {"flair": 0, "t1": 1, "t1ce": 2, "t2": 3}
"""Channel -> index on the fourth axis, as dataset.json of Task01 lists them."""

_TRAINING, _LABELS, _TEST = "imagesTr", "labelsTr", "imagesTs"


class Task01:
    """A layout (see `data.brats.layouts`)."""

    schema = "msd"

    def stems(self, folder: Path, files: Sequence[str]) -> list[str]:
        if folder.name not in (_TRAINING, _TEST):
            return []
        if folder.name == _TEST and any((folder.parent / _TRAINING).glob("BRATS_*.nii*")):
            return []
        return list(dict.fromkeys(name.split(".nii")[0] for name in files if name.startswith("BRATS_")))

    def case_of(self, folder: Path, stem: str, files: Sequence[str]) -> Case:
        name = next(name for name in files if name.split(".nii")[0] == stem)
        truth = folder.with_name(_LABELS) / name
        found = truth if folder.name == _TRAINING and truth.is_file() else None
        return Case(id=stem, images=dict.fromkeys(VOLUMES, folder / name), truth=found, volumes=VOLUMES)
