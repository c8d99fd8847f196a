"""Figures of one pixel in the place of rendered ones: to render them takes a sixth of a small training, and most of an evaluation.

They are made all the same, up to their last label.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave

VARIABLE = "LMS3D_TEST_FIGURES"
RENDERED = {VARIABLE: "rendered"}
"""For the environment of a `tests.small` whose figures a test looks at."""


def save(figure: Figure, file: BinaryIO, *, format: str, dpi: int) -> None:
    """In the place of `Figure.savefig`."""
    if format == "pdf":
        file.write(b"%PDF-1.4")
    else:
        imsave(file, np.zeros((1, 1, 3)), format=format)
