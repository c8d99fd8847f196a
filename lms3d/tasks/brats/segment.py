"""A network's probabilities for a whole case: at once or window by window, under one symmetry or the mean of several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lms3d.data.brats import patches, symmetries
from lms3d.data.brats.geometry import Shape
from lms3d.tasks.inference import Predictor


def probabilities(
    network: Predictor,
    image: np.ndarray,
    *,
    channels: int | None = None,
    patch: Shape | None = None,
    numbers: Sequence[int] = (0,),
) -> np.ndarray:
    """Normalised image (A, B, C, 4) -> probabilities (A, B, C, outputs): the mean over the symmetries with these numbers.

    channels: how many of the outputs to keep; None: all. patch: the shape that the network takes at once; None: the whole image.
    """
    total: np.ndarray | None = None
    for k in numbers:
        turned = np.ascontiguousarray(symmetries.apply(image, k))
        found = patches.sliding_window(network, turned, patch) if patch else network(turned)
        back = symmetries.apply(found[..., :channels], symmetries.inverse(k))
        total = back if total is None else total + back
    assert total is not None, "at least one symmetry"
    return total if len(numbers) == 1 else total / np.float32(len(numbers))
