"""Where swapped tensors live: one module per tier, and the line below that names it. No TensorFlow until one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lms3d.errors import InputError
from lms3d.registry import Registry

if TYPE_CHECKING:
    from lms3d.engine.tiers.base import Tier

TIERS: Registry[type[Tier]] = Registry(
    "swap tier", host="lms3d.engine.tiers.host:HostTier", disk="lms3d.engine.tiers.disk:DiskTier"
)


def tier_choices() -> tuple[str, ...]:
    """The names that a user can ask for: the tiers, and "auto"."""
    return ("auto", *TIERS.names)


def choose_tier(choice: str, compute_device: str) -> str:
    """The name of a tier. "auto": host memory for a GPU; the disk for a CPU, whose tensors are in host memory already."""
    if choice not in tier_choices():
        raise InputError(f"swap tier {choice!r}: expected one of {', '.join(tier_choices())}")
    if choice != "auto":
        return choice
    return "disk" if compute_device.startswith("CPU") else "host"
