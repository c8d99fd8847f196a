"""Manifests of any organ: a column for each channel (see `lms3d.data.volumes.manifest`), and what channels and labels are called.

case,CT,truth                    manifest.csv, beside a dataset.json with channel_names and labels
anna,anna/ct.nii.gz,anna/liver.nii.gz

{"channel_names": ["CT"], "labels": {"background": 0, "liver": 1},       or all of it in one file;
 "cases": [{"case": "anna", "CT": "anna/ct.nii.gz", "truth": "anna/liver.nii.gz"}]}   see `description`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lms3d.data.errors import DataError
from lms3d.data.segmentation import description
from lms3d.data.segmentation.description import Description
from lms3d.data.volumes import manifest
from lms3d.data.volumes.case import Case

KEYS = ("name", "channel_names", "modality", "labels", "regions_class_order")
_STATED = {"channel_names", "modality", "labels"}


def describes(path: Path) -> bool:
    """Whether a manifest names its own channels."""
    try:
        return bool(_STATED & manifest.read(path, KEYS).more.keys() - {"labels"})
    except DataError:  # it is reported when the manifest is read
        return False


def read(path: Path, beside: Any, like: Description | None) -> tuple[list[Case], Description]:
    """The cases and the description of a manifest.

    beside: the content of the dataset.json in the same folder, or None. like: the description for a manifest without any.
    """
    table = manifest.read(path, KEYS)
    stated = table.more if _STATED & table.more.keys() else beside
    if stated is not None:
        described = description.read(
            stated, name=path.stem, where=str(path if stated is table.more else path.parent / "dataset.json")
        )
    elif like is not None:
        described = like
    else:
        raise DataError(
            f"{path}: found no channel_names and labels; expected them in this file (JSON) or in a dataset.json beside it; add them"
        )
    return manifest.cases(table, described.channels, blanks=True), described
