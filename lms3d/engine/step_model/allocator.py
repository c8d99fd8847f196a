"""TensorFlow's best-fit-with-coalescing allocator, as far as it decides what fits. No TensorFlow here.

Counting bytes is too optimistic. The allocator rounds up; it hands out a larger free chunk whole if less than half of it would be
left over; and it needs one piece for one tensor (tensorflow/core/common_runtime/bfc_allocator.cc, in newer sources
xla/tsl/framework/bfc_allocator.cc):

BFC-1  Sizes are rounded up to 256 bytes.
BFC-2  The smallest free chunk that is large enough is taken; among equal ones that at the lowest address.
BFC-3  A chunk is split if it is at least twice as large as wanted, or 128 MiB larger; on a GPU under a hard limit 1 MiB.
BFC-4  A freed chunk merges with its free neighbours.

A GPU's pool is one region. A CPU's pool is laid out in regions (`lms3d.device.pool_layout`): the small one fills up with weights
and slots, and the large one holds the planned tensors. Crumbs have a region of their own, in pieces that nothing else fits into: a
scalar in a hole of exactly the size of a large tensor would cost that size. A GPU's pool has no such region, and crumbs count
like other tensors there.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lms3d.device.pool_layout import (
    ALIGNMENT,
    CRUMB_BYTES,
    FIRST_REGIONS_BYTES,
    GPU_WASTE_BYTES,
    MOST_WASTE_BYTES,
    small_region_bytes,
)
from lms3d.engine.tuning import SMALLEST_PIECE


class Allocator:
    """One or more regions of memory. `allocate` and `take` return an address, or None if nothing fits. most_waste: see BFC-3."""

    def __init__(self, size_bytes: int, most_waste: int = MOST_WASTE_BYTES) -> None:
        self.most_waste = most_waste
        self.free = [(size_bytes, 0)]  # (size, address), sorted: best fit first
        self.at: dict[int, int] = {0: size_bytes}  # address of a free chunk -> its size
        self.ends: dict[int, int] = {size_bytes: 0}  # end of a free chunk -> its address
        self.taken: dict[int, int] = {}  # address -> chunk size
        self.in_use = self.peak = 0

    def add_region(self, size_bytes: int) -> None:
        """Adds an empty region. Its chunks merge with none of another region."""
        self._add(size_bytes, max(self.ends, default=0) + ALIGNMENT)

    def allocate(self, wanted: int) -> int | None:
        """The address of a chunk of `wanted` bytes or more, by BFC-1 to 3."""
        wanted = -(-max(wanted, 1) // ALIGNMENT) * ALIGNMENT  # BFC-1
        i = bisect.bisect_left(self.free, (wanted, -1))  # BFC-2
        if i == len(self.free):
            return None
        size, address = self.free[i]
        self._remove(size, address)
        if size >= 2 * wanted or size - wanted >= self.most_waste:  # BFC-3
            self._add(size - wanted, address + wanted)
            size = wanted
        return self._hand_out(size, address)

    def take(self, size: int) -> int | None:
        """As `allocate`, for many small tensors that together fill `size` bytes: BFC-3 wastes nothing on them."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        i = bisect.bisect_left(self.free, (size, -1))
        if i == len(self.free) or not size:
            return None if size else 0
        free, address = self.free[i]
        self._remove(free, address)
        self._add(free - size, address + size)
        return self._hand_out(size, address)

    def _hand_out(self, size: int, address: int) -> int:
        self.taken[address] = size
        self.in_use += size
        self.peak = max(self.peak, self.in_use)
        return address

    def release(self, address: int) -> None:
        """Frees the chunk at an address (BFC-4)."""
        size = self.taken.pop(address)
        self.in_use -= size
        after = self.at.get(address + size)
        if after is not None:
            self._remove(after, address + size)
            size += after
        before = self.ends.get(address)
        if before is not None:
            size += self.at[before]
            self._remove(self.at[before], before)
            address = before
        self._add(size, address)

    def _add(self, size: int, address: int) -> None:
        if size:
            bisect.insort(self.free, (size, address))
            self.at[address] = size
            self.ends[address + size] = address

    def _remove(self, size: int, address: int) -> None:
        self.free.pop(bisect.bisect_left(self.free, (size, address)))
        del self.at[address], self.ends[address + size]


@dataclass(frozen=True)
class PoolRegions:
    """How a pool is laid out. begin(base_bytes, limit_bytes): an allocator of that limit that holds the resident bytes, before the
    step; None if not even they fit. smallest_bytes: smaller buffers fit anywhere, and are not replayed. late_types: types of ops
    whose result takes its memory after their workspace has.
    """

    begin: Callable[[int, int], Allocator | None]
    smallest_bytes: int
    late_types: frozenset[str] = frozenset()


def _one_region(base_bytes: int, limit_bytes: int, most_waste: int = MOST_WASTE_BYTES) -> Allocator | None:
    allocator = Allocator(limit_bytes, most_waste)
    return None if allocator.take(base_bytes) is None else allocator


def _small_and_large_region(base_bytes: int, limit_bytes: int) -> Allocator | None:
    small = small_region_bytes(limit_bytes)
    large = limit_bytes - small - FIRST_REGIONS_BYTES
    if base_bytes - small > large:
        return None
    allocator = Allocator(max(large, 0))
    allocator.add_region(small)
    inside = min(small, base_bytes) // ALIGNMENT * ALIGNMENT
    if allocator.take(inside) is None or allocator.take(base_bytes - inside) is None:
        return None
    return allocator


# TensorFlow computes the gradient of a convolution's input into a piece of its own, and gives back the one that it took for the
# result (conv_grad_input_ops.cc, conv_grad_ops_3d.cc). On an H200 a workspace of 865 MiB missed a hole with a result in its middle.
_LATE = frozenset({"Conv2DBackpropInput", "Conv3DBackpropInputV2"})
GPU_REGIONS = PoolRegions(_one_region, SMALLEST_PIECE, _LATE)
LIMITED_GPU_REGIONS = PoolRegions(partial(_one_region, most_waste=GPU_WASTE_BYTES), SMALLEST_PIECE, _LATE)
CPU_REGIONS = PoolRegions(_small_and_large_region, CRUMB_BYTES + 1)
