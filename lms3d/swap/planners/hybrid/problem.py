"""A step, reduced to what a planner must decide: large buffers and the ops that touch them. No TensorFlow here.

A traced step has thousands of ops; a few hundred *anchors* touch buffers of more than a crumb and take nearly all the time.
The planner fixes the order of the anchors. Everything else is small, runs whenever it can, and counts as a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lms3d.swap.cost import Machine, op_seconds
from lms3d.swap.ir import (
    FORWARDING_TYPES,
    METADATA_TYPES,
    RESIDENT_TYPES,
    Op,
    StepGraph,
    paired,
    producer_name,
)
from lms3d.swap.liveness import Storage, lasting, peak_bytes, read_whole, roots, storages

# Of all bytes that can be moved: below this share a buffer is not worth a decision. Its ops have a place in the order all the
# same: one that takes its memory earlier or later changes which piece of a pool the next large one gets.
SMALLEST_SHARE = 1 / 2000
CRUMB_BYTES = 64 << 10  # up to here there is not even a place: it counts as a constant
SMALL_SHIFT = 3  # anchors: how far from where what it reads is there a small op may run


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A storage that the planner keeps or, if it is worth that, swaps or recomputes. Positions are indices of anchors.

    mapped: once swapped out, it is read where it lies, and takes no memory of the device.
    """

    root: str
    bytes: int
    defined: int
    reads: tuple[int, ...]
    parents: tuple[int, ...]  # buffers that its op reads, as indices
    returned: bool
    swappable: bool
    recomputable: bool
    seconds: float  # to compute it again
    overwrites: tuple[
        int, ...
    ]  # parents into which its op may write where nobody needs them afterwards: the first it can
    mapped: bool = False


class Reader(NamedTuple):
    """Who reads a buffer, sortable by time: before anchor `anchor` the recomputing of `buffer`, or the anchor itself."""

    anchor: int
    buffer: int  # len(buffers) for the anchor itself


class Small(NamedTuple):
    """A buffer without a place in the order, alive from anchor `first` to anchor `last`.

    hidden: it belongs to these two ops alone (`Op.hidden_bytes`). Others are alive about then: what makes or reads them is held
    to no place in the order.
    """

    bytes: int
    first: int
    last: int
    hidden: bool = False


@dataclass(frozen=True)
class Problem:
    """Anchors in the order in which they will run, with seconds and workspace bytes, and the buffers between them.

    base_bytes: what is always there: weights, slots, batches. small: the buffers without a place in the order.
    small_bytes: per anchor, the most that these take together at about that time.
    """

    graph: StepGraph
    anchors: tuple[str, ...]
    seconds: np.ndarray
    workspace_bytes: np.ndarray
    buffers: tuple[Buffer, ...]
    base_bytes: int
    small: tuple[Small, ...]
    small_bytes: np.ndarray

    @cached_property
    def begins(self) -> np.ndarray:
        """Seconds at which each anchor begins, all in memory, and the end."""
        return np.concatenate([[0.0], self.seconds.cumsum()])

    @cached_property
    def youngest_first(self) -> tuple[int, ...]:
        """The buffers, the one that is made last first."""
        return tuple(sorted(range(len(self.buffers)), key=lambda b: -self.buffers[b].defined))

    @cached_property
    def anchor_events(self) -> tuple[Reader, ...]:
        """The anchors as readers."""
        return tuple(Reader(i, len(self.buffers)) for i in range(len(self.anchors)))

    @cached_property
    def readers(self) -> tuple[tuple[Reader, ...], ...]:
        """Per buffer the anchors that read it."""
        return tuple(tuple(self.anchor_events[r] for r in b.reads) for b in self.buffers)

    @cached_property
    def loose(self) -> tuple[Small, ...]:
        """The small buffers that are more than crumbs and do not belong to an anchor."""
        return tuple(s for s in self.small if s.bytes > CRUMB_BYTES and not s.hidden)

    @cached_property
    def kept_lives(self) -> tuple[tuple[int, int, int, int, tuple[Reader, ...], int], ...]:
        """(buffer, defined, first read, last anchor of its life, readers, bytes) of buffers that are kept, the youngest first."""
        found = []
        for b in self.youngest_first:
            buffer = self.buffers[b]
            reads = buffer.reads or (buffer.defined,)
            last = len(self.anchors) - 1 if buffer.returned else max(reads[-1], buffer.defined)
            found.append((b, buffer.defined, reads[0], last, self.readers[b], buffer.bytes))
        return tuple(found)

    @cached_property
    def overwritten(self) -> frozenset[int]:
        """The parents that some op may overwrite."""
        return frozenset(p for buffer in self.buffers for p in buffer.overwrites)


def reduce(graph: StepGraph, machine: Machine) -> Problem:
    """The planner's view of `graph` on `machine`."""
    stores = storages(graph)
    movable = {root: s for root, s in stores.items() if not s.resident}
    total = sum(s.bytes for s in movable.values())
    worth_moving = max(CRUMB_BYTES, int(total * SMALLEST_SHARE))
    large = {root: s for root, s in movable.items() if s.bytes > CRUMB_BYTES}
    root_of = roots(graph)
    anchors = [op for op in graph.ops if _is_anchor(op, large, root_of)]
    if not anchors:  # only ops that may not be touched make large buffers
        large = {}
    position = {op.name: i for i, op in enumerate(anchors)}
    index = {root: i for i, root in enumerate(large)}
    lasts = lasting(graph)
    buffers = tuple(
        _buffer(
            graph,
            graph.by_name[producer_name(root)],
            store,
            position,
            index,
            root_of,
            machine,
            movable=store.bytes >= worth_moving,
            mapped=machine.mapped and root not in lasts,
        )
        for root, store in large.items()
    )
    small = _small(graph, [s for root, s in movable.items() if root not in large], anchors)
    return Problem(
        graph,
        tuple(op.name for op in anchors),
        np.array([op_seconds(graph, op, machine) for op in anchors]),
        np.array([op.workspace_bytes for op in anchors], np.int64),
        buffers,
        graph.resident_bytes if anchors else peak_bytes(graph),
        small,
        _small_bytes(small, len(anchors)),
    )


def _is_anchor(op: Op, large: dict[str, Storage], root_of: dict[str, str]) -> bool:
    if not op.on_device or op.in_loop or op.shares_input or op.type in METADATA_TYPES or op.type in RESIDENT_TYPES:
        return False
    return any(root_of.get(t) in large for t in op.inputs) or any(t.name in large for t in op.outputs)


def _buffer(
    graph: StepGraph,
    op: Op,
    store: Storage,
    position: dict[str, int],
    index: dict[str, int],
    root_of: dict[str, str],
    machine: Machine,
    *,
    movable: bool,
    mapped: bool,
) -> Buffer:
    parents = tuple(dict.fromkeys(index[root_of[t]] for t in op.inputs if root_of.get(t) in index))
    touched_in_loop = op.in_loop or any(graph.by_name[r].in_loop for r in store.readers)
    reads = sorted(position[r] for r in store.readers if r in position)
    rank = graph.tensors[store.root].rank
    return Buffer(
        root=store.root,
        bytes=store.bytes,
        defined=position.get(op.name, 0),
        reads=tuple(reads),
        parents=parents,
        returned=store.returned,
        swappable=movable
        and op.name in position
        and not touched_in_loop
        and not store.returned
        and rank is not None
        and not any(paired(op, graph.by_name[r]) for r in store.readers),
        recomputable=movable
        and op.name in position
        and not touched_in_loop
        and not store.returned
        and not op.stateful
        and not _is_random(op),
        seconds=op_seconds(graph, op, machine),
        overwrites=_overwrites(graph, op, store, index, root_of),
        mapped=mapped,
    )


def _overwrites(
    graph: StepGraph, op: Op, store: Storage, index: dict[str, int], root_of: dict[str, str]
) -> tuple[int, ...]:
    if op.type not in FORWARDING_TYPES or op.outputs[0].name != store.root:
        return ()
    whole = [root for root in read_whole(graph, op, root_of) if root in index]
    return tuple(dict.fromkeys(index[root] for root in whole if graph.tensors[root].bytes == store.bytes))


def _is_random(op: Op) -> bool:
    """Stateless random ops would give the same numbers again, but nothing random is worth the risk."""
    return "Random" in op.type or "Multinomial" in op.type


def _small(graph: StepGraph, stores: list[Storage], anchors: list[Op]) -> tuple[Small, ...]:
    """The small buffers. The executor runs a small op as soon as what it reads is there, wherever it was traced."""
    if not anchors:
        return ()
    last_anchor = len(anchors) - 1
    ready: dict[str, int] = {op.name: i for i, op in enumerate(anchors)}
    for op in graph.ops:
        before = [*map(producer_name, op.inputs), *op.control_inputs]
        ready.setdefault(op.name, max((ready.get(name, 0) for name in before), default=0))
    found = []
    for store in stores:
        first = ready[producer_name(store.root)]
        last = last_anchor if store.returned else max((ready[r] for r in store.readers), default=first)
        found.append(Small(store.bytes, first, max(first, last)))
    return (*found, *_hidden(graph, anchors))


def _hidden(graph: StepGraph, anchors: list[Op]) -> Iterator[Small]:
    position = {op.name: i for i, op in enumerate(anchors)}
    for op in anchors:
        if op.hidden_bytes:
            gradients = [r for r in graph.consumers.get(op.outputs[0].name, ()) if paired(op, graph.by_name[r])]
            last = max((position.get(r, 0) for r in gradients), default=0)
            yield Small(op.hidden_bytes, position[op.name], max(last, position[op.name]), hidden=True)


def _small_bytes(small: tuple[Small, ...], count: int) -> np.ndarray:
    """The most bytes of small buffers that live together, for each anchor the largest of those near to it.

    Near: up to `SMALL_SHIFT` anchors before or after, since small ops are not held to a place in the order.
    """
    change = np.zeros(count + 1, np.int64)
    for buffer in small:
        change[buffer.first] += buffer.bytes
        change[buffer.last + 1] -= buffer.bytes
    live = change.cumsum()[:-1]
    return np.array([live[max(0, i - SMALL_SHIFT) : i + SMALL_SHIFT + 1].max() for i in range(count)], np.int64)
