"""TensorFlow's best-fit-with-coalescing allocator, as far as it decides what fits. No TensorFlow here.

A plan that counts bytes is too kind: the allocator rounds up, hands out a larger free chunk whole when less than half of
it would be left over, and needs one piece for one tensor. Rules (tensorflow/core/common_runtime/bfc_allocator.cc,
"xla/tsl/framework/bfc_allocator.cc" in newer sources):
 1. Sizes are rounded up to 256 bytes.
 2. The smallest free chunk that is large enough is taken, among equals the one at the lowest address.
 3. It is split when it is at least twice as large as wanted, or 128 MiB larger.
 4. A freed chunk merges with free neighbours.
A GPU's pool is one region. A CPU's is claimed in two by `lms3d.memory`: the small one holds weights and slots, the large
one what the plan is about (small buffers that would find room in the small region count against the large one all the
same). At the start a region holds the resident bytes.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass

from lms3d.swap.problem import Problem
from lms3d.swap.schedule import Copy, Schedule

ALIGNMENT = 256
MOST_WASTE = 128 << 20
FIRST_REGIONS_BYTES = 8 << 20  # what a CPU's pool may have taken already, for the first few scalars
POOLS = ("none", "single", "split")  # no pool (malloc); a GPU's; a CPU's with a hard limit


def small_region_bytes(limit_bytes: int) -> int:
    """Size of the small region of a CPU's pool with this limit; 0 where the pool is too small to be split."""
    return next((mib << 20 for mib in (128, 64, 32) if limit_bytes >= 4 * mib << 20), 0)


class Pool:
    """One region. `allocate` returns an address, or None where nothing fits."""

    def __init__(self, size_bytes: int) -> None:
        self.free = [(size_bytes, 0)]  # (size, address), sorted: best fit first
        self.at: dict[int, int] = {0: size_bytes}  # free chunks by address
        self.ends: dict[int, int] = {size_bytes: 0}  # their end -> address
        self.taken: dict[int, int] = {}  # address -> chunk size
        self.in_use = self.peak = 0

    def allocate(self, wanted: int) -> int | None:
        wanted = -(-max(wanted, 1) // ALIGNMENT) * ALIGNMENT  # rule 1
        i = bisect.bisect_left(self.free, (wanted, -1))  # rule 2
        if i == len(self.free):
            return None
        size, address = self.free[i]
        self._remove(size, address)
        if size >= 2 * wanted or size - wanted >= MOST_WASTE:  # rule 3
            self._add(size - wanted, address + wanted)
            size = wanted
        self.taken[address] = size
        self.in_use += size
        self.peak = max(self.peak, self.in_use)
        return address

    def release(self, address: int) -> None:
        size = self.taken.pop(address)
        self.in_use -= size
        after = self.at.get(address + size)  # rule 4
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
class Fit:
    """`fits`: every buffer found a place. `peak_bytes`: most bytes in use, rounding included (up to where it failed)."""

    fits: bool
    peak_bytes: int


def replay(problem: Problem, schedule: Schedule, limit_bytes: int, pool_kind: str) -> Fit:
    """Run a schedule's allocations through a pool of `limit_bytes` ("single" or "split")."""
    small = small_region_bytes(limit_bytes) + FIRST_REGIONS_BYTES if pool_kind == "split" else 0
    outside = min(small, problem.base_bytes)
    pool = Pool(max(limit_bytes - small, 0))
    if pool.allocate(problem.base_bytes - outside) is None:
        return Fit(False, problem.base_bytes)
    starts: dict[int, list[Copy]] = defaultdict(list)
    ends: dict[int, list[Copy]] = defaultdict(list)
    for copy in schedule.copies:
        starts[copy.start].append(copy)
        ends[copy.end].append(copy)
    address: dict[int, int] = {}
    heirs = {id(c.heir) for c in schedule.copies if c.heir is not None}
    for event in range(len(schedule.events)):
        for copy in starts[event]:
            if id(copy) in heirs:
                continue  # takes over the chunk of the input that it overwrites
            place = pool.allocate(problem.buffers[copy.buffer].bytes)
            if place is None:
                return Fit(False, pool.peak + outside)
            address[id(copy)] = place
        for copy in ends[event]:
            place = address.pop(id(copy))
            if copy.heir is not None:
                address[id(copy.heir)] = place
            else:
                pool.release(place)
    return Fit(True, pool.peak + outside)
