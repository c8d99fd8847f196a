"""The layout of the Medical Segmentation Decathlon, Task01_BrainTumour, with one 4D file per case.

Task01_BrainTumour/dataset.json                 the order of modalities, and the labels
                   imagesTr/BRATS_001.nii.gz    labelsTr/BRATS_001.nii.gz
                   imagesTs/BRATS_485.nii.gz    without truth; used if there is no imagesTr, or if the user names this folder
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lms3d.data.brats.case import Case
from lms3d.data.errors import DataError
from lms3d.data.files import read_json

VOLUMES = {"flair": 0, "t1": 1, "t1ce": 2, "t2": 3}
"""Channel -> index on the fourth axis, as dataset.json of Task01 lists them."""

TRAINING, TEST = "imagesTr", "imagesTs"
_OF_NNUNET = re.compile(r"BRATS_\d+_\d{4}$")  # one channel of a case; see `lms3d.data.brats.nnunet`
_LABELS, _DESCRIPTION = "labelsTr", "dataset.json"
_MODALITIES = {"flair": "flair", "t1w": "t1", "t1gd": "t1ce", "t2w": "t2"}
_MEANINGS = {"background": 0, "edema": 1, "non-enhancing tumor": 2, "enhancing tumour": 3}


class Task01:
    """A layout (see `lms3d.data.brats.layouts`)."""

    title = "Medical Segmentation Decathlon, Task01_BrainTumour"
    schema = "msd"

    def stems(self, folder: Path, files: Sequence[str]) -> list[str]:
        if folder.name not in (TRAINING, TEST):
            return []
        stems = (name.split(".nii")[0] for name in files if name.startswith("BRATS_"))
        return list(dict.fromkeys(stem for stem in stems if not _OF_NNUNET.match(stem)))

    def case_of(self, folder: Path, stem: str, files: Sequence[str]) -> Case:
        name = next(name for name in files if name.split(".nii")[0] == stem)
        truths = [folder.with_name(_LABELS) / f"{stem}{ending}" for ending in (".nii.gz", ".nii")]
        truth = next((path for path in truths if folder.name == TRAINING and path.is_file()), None)
        volumes = _volumes(folder.with_name(_DESCRIPTION))
        return Case(id=stem, images=dict.fromkeys(VOLUMES, folder / name), truth=truth, volumes=volumes)


def _volumes(description: Path) -> Mapping[str, int]:
    """The order in dataset.json, or VOLUMES without that file. DataError if the file describes other data."""
    if not description.is_file():
        return VOLUMES
    about = read_json(description, advice="restore the dataset.json of Task01_BrainTumour")
    modality, labels = (_lower(about.get(key)) if isinstance(about, dict) else {} for key in ("modality", "labels"))
    if {name.replace("tumour", "tumor"): int(value) for value, name in labels.items() if value.isdecimal()} != {
        name.replace("tumour", "tumor"): value for name, value in _MEANINGS.items()
    }:
        raise _other(description, f"labels {labels}", f"{', '.join(_MEANINGS)} as 0 to 3")
    order = {_MODALITIES.get(name): int(index) for index, name in modality.items() if index.isdecimal()}
    if sorted(order.values()) != list(VOLUMES.values()) or set(order) != set(VOLUMES):
        raise _other(description, f"modalities {modality}", f"{', '.join(_MODALITIES)} as 0 to 3")
    return {channel: order[channel] for channel in VOLUMES}


def _lower(value: Any) -> dict[str, str]:
    return {str(key): str(name).lower() for key, name in value.items()} if isinstance(value, dict) else {}


def _other(path: Path, found: str, expected: str) -> DataError:
    return DataError(
        f"{path}: found {found}; expected {expected}; restore the file of Task01_BrainTumour, or remove it"
    )
