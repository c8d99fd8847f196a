"""The swap tier `copied`: the disk tier without reading in place.

On a CPU LMS reads swapped tensors in place. A device with memory of its own has to copy them, and a profile of links is about these
copies.
"""

from __future__ import annotations

from pathlib import Path

from lms3d.engine.tiers.disk import DiskTier


class CopyingTier(DiskTier):
    """Copies swapped tensors back."""

    name = "copied"

    @classmethod
    def can_map(cls, device: str, directory: Path | None) -> bool:
        return False
