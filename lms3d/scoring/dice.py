"""Dice, 2 |P and T| / (|P| + |T|): the one formula behind the tables, the lesions and the metric of training.

EMPTY-1  If one of the two masks is empty, Dice is 0: the formula says so.
EMPTY-2  If both are empty, the rules of the challenge decide (`Rules.both_empty`): `PERFECT`, or NaN, which no mean includes.
EMPTY-3  While training both empty is always `PERFECT` (`keras_dice`): ranks average their means by the number of their samples, and
         do not tell each other how many of these a rule would leave out.

Other metrics follow EMPTY-2, too: see `RegionPair.nothing` and `Column.perfect`.

The losses have a smoothed Dice of their own, which has a gradient (`lms3d.scoring.losses`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

PERFECT = 1.0
"""Dice of two empty masks, if they are counted."""


def _divided(counts: Any, sizes: Any) -> Any:
    return counts / np.maximum(sizes, 1)


def dice(
    common: Any, sizes: Any, *, both_empty: float, where: Callable[..., Any] = np.where, divide: Callable[..., Any] = _divided
) -> Any:  # fmt: skip
    """Dice of numbers of voxels, or of arrays of them: `common` voxels in both masks, `sizes` the sum of both masks' sizes.

    both_empty: the value if sizes is 0. where, divide: TensorFlow's, if these are tensors.
    """
    return where(sizes == 0, both_empty, divide(2 * common, sizes))


def of_masks(prediction: np.ndarray, truth: np.ndarray, *, both_empty: float) -> float:
    """Dice of two boolean masks (X, Y, Z)."""
    sizes = np.count_nonzero(prediction) + np.count_nonzero(truth)
    return float(dice(np.count_nonzero(prediction & truth), sizes, both_empty=both_empty))
