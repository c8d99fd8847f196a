"""What a process of its own does on a shared bus. No TensorFlow: it starts at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.links.calendar import SharedCalendar
from experiments.links.channel import PIECE_BYTES, Channel

PIECE_SECONDS, PIECES = 0.02, 4


def move(bus: str, start: Any, ends: Any) -> None:
    """One transfer of several pieces, once all are there; when it began and ended."""
    channel = Channel(PIECE_BYTES / PIECE_SECONDS, 0.0, SharedCalendar(Path(bus)))
    data = np.ones(PIECES * PIECE_BYTES, np.uint8)
    start.wait(60)
    began = time.monotonic()
    channel.move(np.empty_like(data), data, began)
    ends.put((began, time.monotonic()))
