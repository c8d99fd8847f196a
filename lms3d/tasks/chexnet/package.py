"""What a package says of a radiograph network: the findings, in the order of its outputs. Everything else is fixed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lms3d.data.chest_xray.collection import FINDINGS
from lms3d.data.chest_xray.pipeline import IMAGENET_MEAN, IMAGENET_STD
from lms3d.tasks.chexnet.options import ChexnetConfig

_SAID = {
    "channels": ["red", "green", "blue"],  # three times the same grey
    "outputs": list(FINDINGS),
    "normalisation": {"mean": list(IMAGENET_MEAN), "std": list(IMAGENET_STD)},
}


def packaged(run_dir: Path, options: ChexnetConfig, content: Mapping[str, Any]) -> dict[str, Any]:
    """See `lms3d.tasks.task.Task.packaged`."""
    return dict(_SAID)


def unpacked(said: Mapping[str, Any], options: ChexnetConfig, where: str) -> dict[str, Any]:
    """See `lms3d.tasks.task.Task.unpacked`. ValueError if a package has other findings or other numbers than this program."""
    for name, expected in _SAID.items():
        if said.get(name) != expected:
            raise ValueError(f"found {name} {str(said.get(name))[:80]}, expected {str(expected)[:80]}")
    return {}
