"""What a planner decides about one buffer. No TensorFlow here."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from lms3d.engine.tuning import SPLIT


class Mode(enum.IntEnum):
    """Where the copies of a buffer come from."""

    KEEP = 0
    SWAP = 1
    RECOMPUTE = 2


@dataclass(frozen=True)
class Choice:
    """What happens to one buffer.

    split, later_split: gaps that end a segment (SCHEDULE-1). recompute_at: anchors whose segment of a swapped buffer is recomputed
    (SCHEDULE-2). tight_out, tight_in: the step waits for the transfers (SCHEDULE-4).
    """

    mode: Mode = Mode.KEEP
    tight_out: bool = False
    tight_in: bool = False
    split: int = SPLIT
    recompute_at: tuple[int, ...] = ()
    later_split: int = 0

    def cuts(self, gap: int, *, first: bool) -> bool:
        """Whether a gap of so many anchors between two reads ends a segment. first: the segment of the original (SCHEDULE-1)."""
        return gap > (self.split if first else max(self.split, self.later_split))


KEEP = Choice()
