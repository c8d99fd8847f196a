"""How a CPU's pool under a hard limit is laid out: `cpu_pool` arranges it, planners foresee it. No TensorFlow here."""

from __future__ import annotations

ALIGNMENT = 256
"""Bytes: TensorFlow's allocator rounds all sizes up to a multiple."""

CRUMB_BYTES = 64 << 10
"""Up to this size a tensor is a crumb: it lives in a region of its own, and no plan gives it a place."""

CRUMB_REGION_BYTES = 4 << 20
FIRST_REGIONS_BYTES = CRUMB_REGION_BYTES + (2 << 20)
"""The crumbs' region, and one that TensorFlow makes for the first scalar."""


def small_region_bytes(limit_bytes: int) -> int:
    """Size of the region for weights and other small tensors; 0 where the pool is too small to be split.

    A power of two, as TensorFlow makes regions. What weights leave free of it is lost to large tensors: a sixteenth of the
    pool at most.
    """
    return next((mib << 20 for mib in (128, 64, 32, 16, 8) if limit_bytes >= 16 * mib << 20), 0)
