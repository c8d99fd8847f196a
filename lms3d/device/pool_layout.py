"""The layout of a pool under a hard limit. `cpu_pool` and `gpu_pool` make it, and planners rely on it. No TensorFlow here."""

from __future__ import annotations

ALIGNMENT = 256
"""TensorFlow's allocator rounds all sizes up to a multiple of this many bytes."""

MOST_WASTE_BYTES, GPU_WASTE_BYTES = 128 << 20, 1 << 20
"""A piece that is larger than wanted by so much is split, whatever its size: TensorFlow's own threshold, and the one that
`gpu_pool` sets for a GPU."""

CRUMB_BYTES = 64 << 10
"""A tensor of at most this size is a crumb: it lies in the region for crumbs, and no plan gives it a place."""

CRUMB_REGION_BYTES = 4 << 20
FIRST_REGIONS_BYTES = CRUMB_REGION_BYTES + (2 << 20)
"""The region for crumbs, and the one that TensorFlow makes for the first scalar."""


def small_region_bytes(limit_bytes: int) -> int:
    """The size of the region for weights and other small tensors; 0 if the pool is too small to be split.

    It is a power of two, as TensorFlow's regions are. Large tensors cannot use the part of it that weights leave free, which is at
    most a sixteenth of the pool.
    """
    return next((mib << 20 for mib in (128, 64, 32, 16, 8) if limit_bytes >= 16 * mib << 20), 0)
