"""What a run has to know of its data before anything is trained, or planned: channels, labels, and the size of a voxel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.tasks.segmentation.options import SegmentationConfig

if TYPE_CHECKING:
    from lms3d.data.segmentation.description import Description
    from lms3d.data.segmentation.grid import Grid
    from lms3d.data.segmentation.spacing import Sizes, Spacing
    from lms3d.data.volumes.case import Case
    from lms3d.tasks.volumes.material import VolumeMaterial


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The description of a data set, and the size of the voxels that a network sees."""

    description: Description
    spacing_mm: Spacing


def facts(options: SegmentationConfig, material: VolumeMaterial | None = None) -> Facts:
    """The facts of the material; without one from the headers of `options.data`, or of the embedded data."""
    if material is not None:
        return restored(material.described, "config.json")
    if options.data is None:
        return _of_the_phantoms(options)
    described, cases = _found(options.data)
    return Facts(description=described, spacing_mm=network_spacing(options, cases))


def restored(content: Any, where: str) -> Facts:
    """The facts in the content of a config.json. DataError for content that `material.prepare` has not written."""
    from lms3d.data.errors import DataError
    from lms3d.data.segmentation.description import Description

    described = Description.from_json(content.get("description"), where=where)
    try:
        a, b, c = map(float, content["spacing_mm"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{where}: found no spacing_mm; expected three sizes in mm; train again") from None
    return Facts(description=described, spacing_mm=(a, b, c))


@lru_cache(maxsize=4)
def _found(folder: Path) -> tuple[Description, tuple[Case, ...]]:
    from lms3d.data.segmentation import layouts

    found = layouts.find(folder, require_truth=False)
    return found.description, tuple(found.data_set.cases)


def _of_the_phantoms(options: SegmentationConfig) -> Facts:
    import numpy as np

    from lms3d.data.phantoms import abdomens
    from lms3d.data.segmentation import description
    from lms3d.data.segmentation.spacing import Sizes

    described = description.read(abdomens.content(channels=1), name="phantom", where="the embedded data")
    sizes = Sizes(
        shapes=np.array([abdomens.SHAPE]), spacings_mm=np.array([abdomens.EXTENT_MM]) / np.array([abdomens.SHAPE])
    )
    return Facts(description=described, spacing_mm=_spacing(options, sizes))


def network_spacing(options: SegmentationConfig, cases: Sequence[Case]) -> Spacing:
    """The size of a voxel as the network sees it; the median over the cases, if each is stretched."""
    from lms3d.data.segmentation import spacing

    fixed = options.spacing_mm
    return fixed if fixed is not None else _spacing(options, spacing.sizes(cases))


def _spacing(options: SegmentationConfig, sizes: Sizes) -> Spacing:
    from lms3d.data.segmentation import spacing

    if options.spacing_mm is not None:
        return options.spacing_mm
    if options.box is None and options.spacing is None:
        return sizes.stretched_mm(options.volume_shape())
    return spacing.target(sizes)


def grid(options: SegmentationConfig, spacing_mm: Spacing) -> Grid:
    """The preprocessing of every case. spacing_mm: see `network_spacing`."""
    from lms3d.data.segmentation.grid import Grid

    if options.own_shapes:
        return Grid(shape=None, stretched=False, spacing_mm=spacing_mm, anti_alias=options.anti_alias)
    a, b, c = options.volume_shape()
    if options.box is None:
        return Grid(shape=(a, b, c), stretched=True, anti_alias=options.anti_alias)
    return Grid(shape=(a, b, c), stretched=False, spacing_mm=spacing_mm, anti_alias=options.anti_alias)
