"""The preprocessing of volumes of any organ: a cube, a box of a given spacing, or a spacing alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lms3d.data.volumes import preprocess
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.patches import smallest

SAMPLE_FILE = "foreground.npy"
MOST_SAMPLES = 10_000
"""The voxels of a case whose intensities are kept for the statistics of the data set, as in nnU-Net."""
_SEED = 1234


@dataclass(frozen=True, kw_only=True)
class Grid(preprocess.Preprocessing):
    """The grid of the network. Beyond a scan lies its smallest value: air in a CT."""

    divisor: ClassVar[int] = 2

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "stretched": self.stretched,
            "spacing_mm": list(self.spacing_mm),
            "anti_alias": self.anti_alias,
        }

    @staticmethod
    def from_json(value: Any) -> Grid:
        """What `to_json` wrote. ValueError for anything else."""
        try:
            shape = value["shape"]
            a, b, c = map(float, value["spacing_mm"])
            sides = None if shape is None else (int(shape[0]), int(shape[1]), int(shape[2]))
            stretched, anti_alias = value["stretched"], value["anti_alias"]
            if not (type(stretched) is type(anti_alias) is bool and min(a, b, c) > 0 and np.isfinite([a, b, c]).all()):
                raise ValueError
            return Grid(shape=sides, stretched=stretched, spacing_mm=(a, b, c), anti_alias=anti_alias)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise ValueError(f"found preprocessing {str(value)[:80]}, expected a shape and a spacing") from None

    def beyond(self, images: np.ndarray) -> np.ndarray:
        return smallest(images)

    def facts(
        self, images: np.ndarray, truth: np.ndarray | None, stored: np.ndarray, scale: np.ndarray, schema: LabelSchema
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The shape, the smallest and the largest value of each channel, and intensities of the foreground."""
        numbers = {
            "shape": list(stored.shape[:3]),
            "least": (stored.min(axis=(0, 1, 2)) * scale).tolist(),
            "most": (stored.max(axis=(0, 1, 2)) * scale).tolist(),
        }
        if truth is None:
            return {**numbers, "samples": 0}, {}
        voxels = images[schema.foreground(truth) > 0]
        if len(voxels) > MOST_SAMPLES:
            voxels = voxels[np.random.default_rng(_SEED).choice(len(voxels), MOST_SAMPLES, replace=False)]
        return {**numbers, "samples": len(voxels)}, {SAMPLE_FILE: np.asarray(voxels, np.float32)}
