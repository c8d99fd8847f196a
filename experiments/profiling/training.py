"""`lms3d.train`, which here also knows the swap tier `copied`. No TensorFlow at import: training starts it, under its limit."""

from __future__ import annotations

import sys

from lms3d import train
from lms3d.engine.tiers import TIERS

COPIED = "copied"


def add_tier() -> None:
    """`--swap-tier copied`."""
    TIERS.place(COPIED, "lms3d.experiments.profiling.copying:CopyingTier")


if __name__ == "__main__":
    add_tier()
    sys.exit(train.main())
