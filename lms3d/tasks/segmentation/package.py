"""What a package says of a segmentation network: channels, labels, the outputs, the grid, and how intensities are scaled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lms3d.data.errors import DataError
from lms3d.data.segmentation.grid import Grid
from lms3d.data.segmentation.intensities import ByChannel
from lms3d.errors import InputError
from lms3d.tasks.segmentation.facts import grid, restored
from lms3d.tasks.segmentation.options import SegmentationConfig

KEPT = ("description", "normalisation", "preprocessing", "spacing_mm")
"""The entries of config.json that a package keeps as they are."""


def packaged(run_dir: Path, options: SegmentationConfig, content: Mapping[str, Any]) -> dict[str, Any]:
    """See `lms3d.tasks.task.Task.packaged`."""
    where = str(run_dir / "config.json")
    try:
        return _said(content, options, where)
    except (ValueError, DataError) as error:
        raise InputError(f"{where}: {error}; train again") from None


def unpacked(said: Mapping[str, Any], options: SegmentationConfig, where: str) -> dict[str, Any]:
    """See `lms3d.tasks.task.Task.unpacked`."""
    for name, expected in json.loads(json.dumps(_said(said, options, where))).items():
        if said.get(name) != expected:
            raise ValueError(f"found {name} {str(said.get(name))[:80]}, expected {str(expected)[:80]}")
    return {name: said[name] for name in KEPT}


def network_options(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The options of `models.build` that do not follow from the weights."""
    known = restored(said, where)
    return {"activation": known.description.targets.activation, "spacing_mm": known.spacing_mm}


def _said(content: Mapping[str, Any], options: SegmentationConfig, where: str) -> dict[str, Any]:
    """The content of a package. ValueError or DataError for what no run can have."""
    known = restored(content, where)
    scaled = ByChannel.from_json(content.get("normalisation"))
    how, described = Grid.from_json(content.get("preprocessing")), known.description
    if len(scaled.channels) != len(described.channels):
        raise ValueError(f"found normalisation of {len(scaled.channels)} channels, expected {len(described.channels)}")
    if how != grid(options, how.spacing_mm if how.stretched else known.spacing_mm):
        raise ValueError(f"found preprocessing {how.to_json()}, which does not belong to the options")
    return {
        "channels": list(described.channels),
        "outputs": list(described.targets.names),
        "description": described.to_json(),
        "normalisation": scaled.to_json(),
        "preprocessing": how.to_json(),
        "spacing_mm": list(known.spacing_mm),
    }
