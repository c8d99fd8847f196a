"""The preprocessing of brain scans: a cube or a box, of which the bias field may be removed first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lms3d.data.brats.bias_field import N4_CHANNELS, correct_bias
from lms3d.data.brats.schema import CHANNELS
from lms3d.data.volumes import preprocess


@dataclass(frozen=True, kw_only=True)
class Preprocessing(preprocess.Preprocessing):
    """A cube that the brain fills, as in the case study, or a box of 1 mm voxels with the brain in the middle."""

    n4: bool = False
    """Whether the bias fields of t1, t1ce and t2 are removed."""

    @property
    def name(self) -> str:
        """Such as "144-n4-smooth"."""
        return "-".join([*self._grid_name(), *(["n4"] * self.n4), *(["smooth"] * self.anti_alias)])

    @property
    def in_words(self) -> str:
        return super().in_words + (" with N4" if self.n4 else "")

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "stretched": self.stretched,
            "n4": self.n4,
            "anti_alias": self.anti_alias,
        }

    def corrected(self, channel: np.ndarray, index: int) -> np.ndarray:
        return correct_bias(channel) if self.n4 and CHANNELS[index] in N4_CHANNELS else channel


def cube(resolution: int, **more: Any) -> Preprocessing:
    """The preprocessing of the case study: the brain is stretched to (N, N, N). DataError for a side that is no multiple of 16."""
    return Preprocessing(shape=(resolution,) * 3, **more)
