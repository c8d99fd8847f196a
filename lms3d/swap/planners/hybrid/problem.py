"""A step, reduced to what a planner decides: large buffers and the ops that touch them. No TensorFlow here.

A traced step has thousands of ops; a few hundred *anchors* touch buffers of more than a crumb and take nearly all the time.
The planner fixes the order of the anchors. All other ops are small, run whenever they can, and count as a constant.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.swap import ledger
from lms3d.swap.cost import Machine, op_seconds
from lms3d.swap.ir import FORWARDING_TYPES, METADATA_TYPES, RESIDENT_TYPES, Op, StepGraph, paired, producer_name
from lms3d.swap.liveness import Storage, lasting, peak_bytes, read_whole, roots, storages
from lms3d.swap.tuning import SMALL_SHIFT, SMALLEST_SHARE

_ITSELF = sys.maxsize  # sorts behind all buffers that are recomputed for an anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A storage that the planner keeps, swaps or recomputes. Positions are indices of anchors.

    parents: the buffers that its op reads, as indices. overwrites: those of them into which its op may write where nobody
    reads them afterwards; it takes the first that it can.
    seconds: to compute it again. mapped: once swapped out, it is read where it lies and takes no memory of the device.
    """

    root: str
    bytes: int
    defined: int
    reads: tuple[int, ...]
    parents: tuple[int, ...]
    returned: bool
    swappable: bool
    recomputable: bool
    seconds: float
    overwrites: tuple[int, ...]
    mapped: bool = False


class Event(NamedTuple):
    """Something that runs and reads buffers, sortable by time: an anchor, or, before it, the recomputing of a buffer."""

    anchor: int
    buffer: int = _ITSELF

    @property
    def is_anchor(self) -> bool:
        return self.buffer == _ITSELF


class Small(NamedTuple):
    """A buffer without a place in the order, alive from anchor `start` to anchor `end`.

    hidden: it belongs to these two ops (`Op.hidden_bytes`). The ops of all others have no fixed place: the anchors are rough.
    """

    bytes: int
    start: int
    end: int
    hidden: bool = False


class KeptLife(NamedTuple):
    """The one life of a buffer that is kept, in anchors."""

    buffer: int
    defined: int
    first_read: int
    end: int
    readers: tuple[Event, ...]
    bytes: int


@dataclass(frozen=True)
class Problem:
    """Anchors in the order in which they will run, with seconds and workspace bytes, and the buffers between them.

    base_bytes: what stays throughout: weights, slots, batches. small: the buffers without a place in the order.
    small_bytes: int64, shape (anchors,), the most that these take together at about that time.
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
        """Seconds at which each anchor begins where everything is kept, and the end: shape (anchors + 1,)."""
        return np.concatenate([[0.0], self.seconds.cumsum()])

    @cached_property
    def youngest_first(self) -> tuple[int, ...]:
        """The buffers, the last one made first."""
        return tuple(sorted(range(len(self.buffers)), key=lambda b: -self.buffers[b].defined))

    @cached_property
    def anchor_events(self) -> tuple[Event, ...]:
        return tuple(map(Event, range(len(self.anchors))))

    @cached_property
    def readers(self) -> tuple[tuple[Event, ...], ...]:
        """Per buffer the anchors that read it."""
        return tuple(tuple(self.anchor_events[r] for r in b.reads) for b in self.buffers)

    @cached_property
    def loose(self) -> tuple[Small, ...]:
        """The small buffers that are more than crumbs and do not belong to an anchor."""
        return tuple(s for s in self.small if s.bytes > CRUMB_BYTES and not s.hidden)

    @cached_property
    def kept_lives(self) -> tuple[KeptLife, ...]:
        """The buffers as they live where all are kept, the youngest first."""
        found = []
        for b in self.youngest_first:
            buffer = self.buffers[b]
            reads = buffer.reads or (buffer.defined,)
            end = len(self.anchors) - 1 if buffer.returned else max(reads[-1], buffer.defined)
            found.append(KeptLife(b, buffer.defined, reads[0], end, self.readers[b], buffer.bytes))
        return tuple(found)

    def seconds_of(self, event: Event) -> float:
        """Seconds that an event takes."""
        return float(self.seconds[event.anchor]) if event.is_anchor else self.buffers[event.buffer].seconds

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
    may_go = movable and op.name in position and not touched_in_loop and not store.returned
    reads = sorted(position[r] for r in store.readers if r in position)
    return Buffer(
        root=store.root,
        bytes=store.bytes,
        defined=position.get(op.name, 0),
        reads=tuple(reads),
        parents=parents,
        returned=store.returned,
        swappable=may_go
        and graph.tensors[store.root].rank is not None
        and not any(paired(op, graph.by_name[r]) for r in store.readers),
        recomputable=may_go and not op.stateful and not _is_random(op),
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
    """Stateless random ops would repeat their numbers, but nothing random is worth the risk."""
    return "Random" in op.type or "Multinomial" in op.type


def _small(graph: StepGraph, stores: list[Storage], anchors: list[Op]) -> tuple[Small, ...]:
    """The small buffers. The executor runs a small op as soon as its inputs are ready, wherever it was traced."""
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
    """For each anchor the most bytes of small buffers within `SMALL_SHIFT` anchors of it: their ops have no fixed place."""
    live = ledger.live_bytes(small, count)
    return np.array([live[max(0, i - SMALL_SHIFT) : i + SMALL_SHIFT + 1].max() for i in range(count)], np.int64)
