"""Which buffers are cheaper computed again than written to the tier, and from what. No TensorFlow here.

AGAIN-1  A buffer is computed again just before a far read, from its parents. A parent that is cheap itself is computed again for
         it, and so on, `tuning.CHAIN_DEPTH` deep, or, in another way, is read where it is there then (`Chain.reads`). All other
         parents must be there for reads of their own, on the device or in the tier: a chain makes nothing live longer.
AGAIN-2  Cheap is what takes less to compute than to write, by links and processor together.
AGAIN-3  Only where the tier is mapped. Elsewhere each parent that left takes a transfer and memory to come back.
AGAIN-4  Reads within `tuning.SHARED` anchors share a copy: those of neighbouring slabs, by their halos. A buffer that would be made
         more than `tuning.MOST_AGAIN` times is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from lms3d.engine.cost import Machine
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import Buffer, Problem
from lms3d.engine.tuning import CHAIN_DEPTH, CHAIN_PARENTS, MOST_AGAIN, SHARED


def gaps(buffer: Buffer) -> list[int]:
    """Anchors between neighbouring reads, from the op that makes the buffer on."""
    return [after - before for before, after in itertools.pairwise((buffer.defined, *buffer.reads))]


class Chain(NamedTuple):
    """How a buffer is computed again: seconds of all ops, the buffers that are computed again for it, and those that could be but
    are read."""

    seconds: float
    through: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()


class Chains:
    """Of the buffers of a problem (AGAIN-1)."""

    def __init__(self, problem: Problem, machine: Machine) -> None:
        self.problem, self.machine = problem, machine

    @cached_property
    def cheap(self) -> tuple[bool, ...]:
        """Per buffer, AGAIN-2, 3."""
        return tuple(map(self._cheap, self.problem.buffers))

    def _cheap(self, buffer: Buffer) -> bool:
        few = len(buffer.parents) <= CHAIN_PARENTS
        return buffer.mapped and buffer.recomputable and few and buffer.seconds < self.written_seconds(buffer)

    def written_seconds(self, buffer: Buffer) -> float:
        """What writing a buffer and reading it in the tier takes: the link's seconds, the step's, and two nodes'."""
        out = buffer.bytes / self.machine.swap_out_bytes_per_second
        return out * (1 + self.machine.transfer_price) + 2 * self.machine.node_seconds

    def choices(self, b: int) -> Iterator[Choice]:
        """The ways to cut the reads of a buffer (AGAIN-4): at the first far gap, and at the longest."""
        found = gaps(self.problem.buffers[b])
        if not self.cheap[b] or max(found, default=0) <= SHARED:
            return
        first = next(i for i, gap in enumerate(found) if gap > SHARED)
        for cut in dict.fromkeys((first, found.index(max(found)))):
            kept, later = found[:cut], found[cut + 1 :]
            split = max(kept, default=0)
            if 1 + sum(gap > max(SHARED, split) for gap in later) <= MOST_AGAIN:
                # No more than it takes: reads for others do not prolong its copies, but get their own.
                shared = max((gap for gap in later if gap <= SHARED), default=0)
                yield Choice(Mode.RECOMPUTE, split=split, later_split=shared)

    def at(self, b: int, anchor: int, *, alone: bool, depth: int = 1) -> Chain | None:
        """How a cheap buffer is computed just before an anchor; None where it cannot be.

        alone: cheap parents are read where they are there by their own reads.
        """
        chain = Chain(self.problem.buffers[b].seconds)
        for parent in self.problem.buffers[b].parents:
            found = self._parent(parent, anchor, alone, depth)
            if found is None:
                return None
            chain = Chain(chain.seconds + found.seconds, chain.through | found.through, chain.reads | found.reads)
        return chain

    def _parent(self, b: int, anchor: int, alone: bool, depth: int) -> Chain | None:
        """What it takes that a parent can be read at an anchor."""
        buffer = self.problem.buffers[b]
        there = buffer.returned or max(buffer.reads, default=0) >= anchor
        chain = None
        if self.cheap[b] and depth < CHAIN_DEPTH:
            chain = self.at(b, anchor, alone=alone, depth=depth + 1)
        if chain is not None and not (alone and there):
            return chain._replace(through=chain.through | {b})
        reads = frozenset([b]) if chain is not None else frozenset[int]()
        return Chain(0.0, reads=reads) if there else None


def passing(buffer: Buffer) -> Choice:
    """For what is computed again only for others: its own reads get the original."""
    return Choice(Mode.RECOMPUTE, split=max(gaps(buffer), default=0))
