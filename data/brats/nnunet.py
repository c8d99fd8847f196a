"""Raw folders of nnU-Net. They are recognised, so that an error can say what to do, but not read.

Dataset137_BraTS2021/dataset.json                          channel_names and labels
                     imagesTr/BraTS2021_00000_0000.nii.gz  one file per channel
"""

from __future__ import annotations

import re
from pathlib import Path

_CHANNEL = re.compile(r".+_\d{4}\.nii(\.gz)?$")
_FOLDERS = ("imagesTr", "imagesTs")


def is_raw(root: Path) -> bool:
    """Whether `root`, or a folder in it, is a raw folder of nnU-Net, or the imagesTr or imagesTs of one."""
    below = (folder for name in _FOLDERS for folder in root.glob(f"*/{name}"))
    places = [root, *(root / name for name in _FOLDERS), *below]
    images = (image for place in places if place.name in _FOLDERS and place.is_dir() for image in place.iterdir())
    return any(_CHANNEL.match(image.name) for image in images)
