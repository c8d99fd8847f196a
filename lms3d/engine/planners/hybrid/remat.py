"""Rematerialisation: which buffers are cheaper to recompute than to move, and from what. No TensorFlow here.

REMAT-1  A buffer is recomputed just before a far read, from its parents. A parent that is cheap itself is recomputed for it, and so
         on, `tuning.CHAIN_DEPTH` ops deep; in another candidate such a parent is read instead, if its own reads keep it alive
         (`Chain.asks`). All other parents must be alive for reads of their own, on the device or in the tier: a chain makes
         nothing live longer.
REMAT-2  A buffer is cheap if recomputing it takes less than writing it and, unless it is read in the tier, bringing it back,
         counting links and processor together.
REMAT-3  What is in a tier that nothing can read is alive only in its copies on the device (COVER-5).
REMAT-4  Reads within `tuning.SHARED` anchors share a copy: neighbouring slabs read it through their halos. A buffer that would
         be recomputed more than `tuning.MOST_COPIES` times is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from lms3d.engine.cost import Machine
from lms3d.engine.planners.hybrid.tuning import CHAIN_DEPTH, CHAIN_PARENTS, MOST_COPIES, SHARED
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import Buffer, Problem


def gaps(buffer: Buffer) -> list[int]:
    """The anchors between neighbouring reads, beginning with the op that makes the buffer."""
    return [after - before for before, after in itertools.pairwise((buffer.defined, *buffer.reads))]


class Chain(NamedTuple):
    """How a buffer is recomputed. seconds: of all its ops. through: the buffers that are recomputed for it. reads: the others that
    are read. asks: the reads that could be recomputed, too."""

    seconds: float
    through: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()
    asks: frozenset[int] = frozenset()


class Chains:
    """The chains of a problem's buffers (REMAT-1)."""

    def __init__(self, problem: Problem, machine: Machine) -> None:
        self.problem, self.machine = problem, machine

    @cached_property
    def cheap(self) -> tuple[bool, ...]:
        """Whether each buffer is cheap to recompute (REMAT-2)."""
        return tuple(map(self._cheap, self.problem.buffers))

    def _cheap(self, buffer: Buffer) -> bool:
        few = len(buffer.parents) <= CHAIN_PARENTS
        return buffer.recomputable and few and buffer.seconds < self.written_seconds(buffer)

    def written_seconds(self, buffer: Buffer) -> float:
        """The price of writing a buffer and reading it in the tier, or bringing it back: seconds of the links, of the step, and of
        two nodes."""
        moving = buffer.bytes / self.machine.swap_out_bytes_per_second
        if not buffer.mapped:
            moving += buffer.bytes / self.machine.swap_in_bytes_per_second
        return moving * (1 + self.machine.transfer_price) + 2 * self.machine.node_seconds

    def choices(self, b: int) -> Iterator[Choice]:
        """The choices that cut a buffer's reads at the first far gap, and at the longest one (REMAT-4)."""
        anchors = gaps(self.problem.buffers[b])
        if not self.cheap[b] or max(anchors, default=0) <= SHARED:
            return
        first = next(i for i, gap in enumerate(anchors) if gap > SHARED)
        for cut in dict.fromkeys((first, anchors.index(max(anchors)))):
            kept, later = anchors[:cut], anchors[cut + 1 :]
            split = max(kept, default=0)
            if 1 + sum(gap > max(SHARED, split) for gap in later) <= MOST_COPIES:
                # No larger than needed: reads for other buffers get copies of their own and do not prolong these.
                shared = max((gap for gap in later if gap <= SHARED), default=0)
                yield Choice(Mode.RECOMPUTE, split=split, later_split=shared)

    def chain(self, b: int, anchor: int, *, alone: bool, depth: int = 1) -> Chain | None:
        """How a cheap buffer is recomputed just before an anchor; None if it cannot be.

        alone: cheap parents that their own reads keep alive until then are read, not recomputed.
        """
        chain = Chain(self.problem.buffers[b].seconds)
        for parent in self.problem.buffers[b].parents:
            part = self._parent(parent, anchor, alone, depth)
            if part is None:
                return None
            chain = Chain(
                chain.seconds + part.seconds,
                chain.through | part.through,
                chain.reads | part.reads,
                chain.asks | part.asks,
            )
        return chain

    def room_bytes(self, b: int, anchor: int, chain: Chain) -> int:
        """The most bytes that a chain takes before an anchor, besides the buffer itself and what the anchor takes afterwards."""
        buffers = self.problem.buffers
        order = sorted({*chain.through, b}, key=lambda one: (buffers[one].defined, one))
        place = {one: i for i, one in enumerate(order)}
        last = dict(place)
        for one in order:
            for parent in buffers[one].parents:
                if parent in place:
                    last[parent] = place[one]
        most = 0
        for i, one in enumerate(order):
            live = sum(buffers[other].bytes for other in order[: i + 1] if last[other] >= i)
            most = max(most, live + buffers[one].workspace_bytes)
        return max(most - buffers[b].bytes - self._made_bytes[anchor], 0)

    @cached_property
    def _made_bytes(self) -> list[int]:
        """The bytes that each anchor makes, and takes while it runs."""
        made = self.problem.workspace_bytes.tolist()
        for buffer in self.problem.buffers:
            made[buffer.defined] += buffer.bytes
        return made

    def _parent(self, b: int, anchor: int, alone: bool, depth: int) -> Chain | None:
        """The chain that makes a parent readable at an anchor; None if there is none."""
        buffer = self.problem.buffers[b]
        alive = buffer.returned or max(buffer.reads, default=0) >= anchor
        chain = None
        if self.cheap[b] and depth < CHAIN_DEPTH:
            chain = self.chain(b, anchor, alone=alone, depth=depth + 1)
        if chain is not None and not (alone and alive):
            return chain._replace(through=chain.through | {b})
        read = frozenset([b])
        return Chain(0.0, reads=read, asks=read if chain is not None else frozenset()) if alive else None


def for_others_alone(buffer: Buffer) -> Choice:
    """The choice for a buffer that is recomputed only for other buffers: its own reads get the original."""
    return Choice(Mode.RECOMPUTE, split=max(gaps(buffer), default=0))
