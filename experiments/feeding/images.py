"""Shards for all ranks: made, or found, by the parent, so that no rank begins with work that others wait for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lms3d.data.chest_xray.records import Index, Part


def shards_of(data: Path | None, resolution: int, most_ranks: int) -> Index:
    """The shards of the ChestX-ray14 folder `data` (None: the embedded radiographs) at N^2 pixels.

    InputError if there are fewer training shards than ranks: the new order deals out files.
    """
    from lms3d.console import progress
    from lms3d.data.chest_xray import collection, shards
    from lms3d.data.phantoms import chests
    from lms3d.errors import InputError

    with progress() as report:
        folder = chests.write(chests.default_directory(), progress=report) if data is None else data
        index = shards.build(collection.find_images(folder), resolution, progress=report)
    files = len(index.parts["training"].files)
    if files < most_ranks:
        raise InputError(
            f"--ranks {most_ranks}: found {files} training shards in {index.directory}, expected at least one for each rank; "
            "use fewer ranks or a larger --data"
        )
    return index


def training_part(directory: str | Path) -> Part:
    """The training images of finished shards, which a rank reads."""
    from lms3d.data.chest_xray.records import open_index

    return open_index(directory).parts["training"]
