"""What a planner decides about one buffer. No TensorFlow here."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from lms3d.engine.tuning import SPLIT


class Mode(enum.IntEnum):
    KEEP = 0
    SWAP = 1
    RECOMPUTE = 2


@dataclass(frozen=True)
class Choice:
    """What happens to one buffer. tight_out, tight_in: SCHEDULE-4; split, later_split: SCHEDULE-1; again: SCHEDULE-2."""

    mode: Mode = Mode.KEEP
    tight_out: bool = False
    tight_in: bool = False
    split: int = SPLIT
    again: tuple[int, ...] = ()
    later_split: int = 0

    def cuts(self, gap: int, *, first: bool) -> bool:
        """Whether a gap of so many anchors between two reads ends a segment. first: that of the original (SCHEDULE-1)."""
        return gap > (self.split if first else max(self.split, self.later_split))


KEEP = Choice()
