"""A step, reduced to what a planner decides about: large buffers and the ops that touch them. No TensorFlow here.

A traced step has thousands of ops. A few hundred *anchors* touch buffers of more than a crumb, and take nearly all the time.
The planner fixes the order of the anchors. All other ops are small, run whenever they can, and count as a constant.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.engine.cost import Machine, op_seconds
from lms3d.engine.ir import (
    CALLING_TYPES,
    FORWARDING_TYPES,
    METADATA_TYPES,
    RESIDENT_TYPES,
    Op,
    StepGraph,
    paired,
    producer_name,
)
from lms3d.engine.liveness import Storage, lasting, peak_bytes, read_once, roots, storages
from lms3d.engine.step_model import ledger
from lms3d.engine.tuning import MOST_KEPT_SHARE, SMALL_SHIFT, SMALLEST_SHARE

_ITSELF = sys.maxsize  # sorts behind all buffers that are recomputed for an anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A storage that the planner keeps, swaps or recomputes. Positions are indices of anchors.

    parents: the indices of the buffers that its op reads. overwrites: the parents into which its op may write if nobody reads them
    afterwards; it takes the first that it can. seconds, workspace_bytes: what recomputing takes, besides the buffer itself; the
    other results of its op are part of the workspace. mapped: once swapped out, it is read in place and takes no memory of the
    device. last_recompute: the anchor that updates a variable that its op reads.
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
    workspace_bytes: int = 0
    last_recompute: int = sys.maxsize


class Event(NamedTuple):
    """Something that runs and reads buffers: an anchor, or, before it, the recomputing of a buffer. Events sort by time."""

    anchor: int
    buffer: int = _ITSELF

    @property
    def is_anchor(self) -> bool:
        return self.buffer == _ITSELF


class Small(NamedTuple):
    """A buffer without a place in the order, alive from anchor `start` to anchor `end`.

    hidden: it belongs to these two ops (`Op.hidden_bytes`). The ops of other small buffers have no fixed place, so that `start` and
    `end` are rough.
    """

    bytes: int
    start: int
    end: int
    hidden: bool = False


class KeptLife(NamedTuple):
    """The life of a buffer that is kept, in anchors."""

    buffer: int
    defined: int
    first_read: int
    end: int
    readers: tuple[Event, ...]
    bytes: int


@dataclass(frozen=True)
class Problem:
    """Anchors in the order in which they will run, with seconds and workspace bytes, and the buffers between them.

    base_bytes: of what stays throughout: weights, slots, batches. small: the buffers without a place in the order.
    small_bytes: the most bytes that they take together at about each anchor: int64, shape (anchors,).
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
        """The seconds at which each anchor begins if everything is kept, and the end: shape (anchors + 1,)."""
        return np.concatenate([[0.0], self.seconds.cumsum()])

    @cached_property
    def youngest_first(self) -> tuple[int, ...]:
        """The indices of the buffers, the last one made first."""
        return tuple(sorted(range(len(self.buffers)), key=lambda b: -self.buffers[b].defined))

    @cached_property
    def anchor_events(self) -> tuple[Event, ...]:
        return tuple(map(Event, range(len(self.anchors))))

    @cached_property
    def readers(self) -> tuple[tuple[Event, ...], ...]:
        """For each buffer the anchors that read it."""
        return tuple(tuple(self.anchor_events[r] for r in b.reads) for b in self.buffers)

    @cached_property
    def kept_lives(self) -> tuple[KeptLife, ...]:
        """The lives of the buffers if all are kept, the youngest first."""
        lives = []
        for b in self.youngest_first:
            buffer = self.buffers[b]
            reads = buffer.reads or (buffer.defined,)
            end = len(self.anchors) - 1 if buffer.returned else max(reads[-1], buffer.defined)
            lives.append(KeptLife(b, buffer.defined, reads[0], end, self.readers[b], buffer.bytes))
        return tuple(lives)

    def seconds_of(self, event: Event) -> float:
        """The seconds that an event takes."""
        return float(self.seconds[event.anchor]) if event.is_anchor else self.buffers[event.buffer].seconds

    @cached_property
    def overwritten(self) -> frozenset[int]:
        """The buffers that some op may overwrite."""
        return frozenset(p for buffer in self.buffers for p in buffer.overwrites)


def reduce(graph: StepGraph, machine: Machine) -> Problem:
    """The problem that `graph` is on `machine`."""
    return _Reduction(graph, machine).problem()


class _Reduction:
    def __init__(self, graph: StepGraph, machine: Machine) -> None:
        self.graph, self.machine = graph, machine
        self.root_of, self.lasts = roots(graph), lasting(graph)
        self.movable = {root: store for root, store in storages(graph).items() if not store.resident}
        self.large = {root: store for root, store in self.movable.items() if store.bytes > CRUMB_BYTES}
        self.worth_moving = _worth_moving([store.bytes for store in self.movable.values()], _slabs(graph))
        self.anchors = [op for op in graph.ops if self._is_anchor(op)]
        if not self.anchors:  # only ops that may not be touched make large buffers
            self.large = {}
        self.position = {op.name: i for i, op in enumerate(self.anchors)}
        self.index = {root: i for i, root in enumerate(self.large)}
        self.updates = self._updates()

    def problem(self) -> Problem:
        small = (*self._small(), *self._hidden())
        return Problem(
            self.graph,
            tuple(op.name for op in self.anchors),
            np.array([op_seconds(self.graph, op, self.machine) for op in self.anchors]),
            np.array([op.workspace_bytes for op in self.anchors], np.int64),
            tuple(self._buffer(store) for store in self.large.values()),
            self.graph.resident_bytes if self.anchors else peak_bytes(self.graph),
            small,
            _small_bytes(small, len(self.anchors)),
        )

    def _is_anchor(self, op: Op) -> bool:
        if not op.on_device or op.in_loop or op.shares_input or op.type in METADATA_TYPES or op.type in RESIDENT_TYPES:
            return False
        reads_large = any(self.root_of.get(t) in self.large for t in op.inputs)
        return reads_large or op.workspace_bytes > CRUMB_BYTES or any(t.name in self.large for t in op.outputs)

    def _buffer(self, store: Storage) -> Buffer:
        op, readers = self._maker(store), [self.graph.by_name[r] for r in store.readers]
        in_loop = op.in_loop or any(reader.in_loop for reader in readers)
        may_go = store.bytes >= self.worth_moving and op.name in self.position and not in_loop and not store.returned
        known_rank = self.graph.tensors[store.root].rank is not None
        return Buffer(
            root=store.root,
            bytes=store.bytes,
            defined=self.position.get(op.name, 0),
            reads=tuple(sorted(self.position[r.name] for r in readers if r.name in self.position)),
            parents=tuple(
                dict.fromkeys(self.index[self.root_of[t]] for t in op.inputs if self.root_of.get(t) in self.index)
            ),
            returned=store.returned,
            swappable=may_go and known_rank and not any(paired(op, reader) for reader in readers),
            recomputable=may_go and not op.stateful and not is_random(op) and op.type not in CALLING_TYPES,
            seconds=op_seconds(self.graph, op, self.machine),
            overwrites=self._overwrites(op, store),
            mapped=self.machine.mapped and store.root not in self.lasts,
            workspace_bytes=op.workspace_bytes + sum(t.bytes or 0 for t in op.outputs if t.name != store.root),
            last_recompute=min(
                (self.updates.get(name, sys.maxsize) for name in self._variables(op)), default=sys.maxsize
            ),
        )

    def _updates(self) -> dict[str, int]:
        """The handle of each variable that anchors update -> the first of them."""
        first: dict[str, int] = {}
        for i, op in enumerate(self.anchors):
            for name in op.inputs if op.stateful and not op.type.startswith("ResourceGather") else ():
                first.setdefault(name, i)
        return first

    def _variables(self, op: Op) -> list[str]:
        """The handles of the variables whose values an op reads."""
        makers = [self.graph.by_name[producer_name(self.root_of[t])] for t in op.inputs if t in self.root_of]
        return [name for maker in makers if maker.type == "ReadVariableOp" for name in maker.inputs]

    def _maker(self, store: Storage) -> Op:
        return self.graph.by_name[producer_name(store.root)]

    def _overwrites(self, op: Op, store: Storage) -> tuple[int, ...]:
        if op.type not in FORWARDING_TYPES or op.outputs[0].name != store.root:
            return ()
        once = read_once(self.graph, op, self.root_of)
        return tuple(self.index[root] for root, seen in once.items() if root in self.index and seen == store.bytes)

    def _small(self) -> Iterator[Small]:
        """The small buffers. The executor runs a small op as soon as its inputs are ready, wherever the op was traced."""
        ready = dict(self.position)
        for op in self.graph.ops if self.anchors else ():
            before = [*map(producer_name, op.inputs), *op.control_inputs]
            ready.setdefault(op.name, max((ready.get(name, 0) for name in before), default=0))
        for root, store in self.movable.items() if self.anchors else ():
            if root not in self.large:
                start = ready[producer_name(root)]
                last = max((ready[r] for r in store.readers), default=start)
                yield Small(store.bytes, start, len(self.anchors) - 1 if store.returned else max(start, last))

    def _hidden(self) -> Iterator[Small]:
        for start, op in enumerate(self.anchors):
            if op.hidden_bytes:
                readers = self.graph.consumers.get(op.outputs[0].name, ())
                gradients = [self.position.get(r, 0) for r in readers if paired(op, self.graph.by_name[r])]
                yield Small(op.hidden_bytes, start, max([start, *gradients]), hidden=True)


def _worth_moving(sizes: Sequence[int], slabs: int) -> int:
    """The bytes of the smallest buffers that a plan may move, of buffers of these sizes."""
    in_order = np.sort(np.asarray(sizes, np.int64))
    together, whole = np.cumsum(in_order), int(in_order.sum())
    may_stay = in_order[together > whole * MOST_KEPT_SHARE].min(initial=whole)
    return max(CRUMB_BYTES, min(int(whole * SMALLEST_SHARE / slabs), int(may_stay)))


def _slabs(graph: StepGraph) -> int:
    """The most ops of one type that slicing made of one op: about the number of slabs. 1 in a step of whole tensors."""
    return max(Counter((op.group, op.type) for op in graph.ops if op.group).values(), default=1)


def is_random(op: Op) -> bool:
    """Whether an op is random. Stateless random ops would repeat their numbers, but recomputing them is not worth the risk."""
    return "Random" in op.type or "Multinomial" in op.type


def _small_bytes(small: tuple[Small, ...], count: int) -> np.ndarray:
    """For each anchor the most bytes of small buffers within `SMALL_SHIFT` anchors, since their ops have no fixed place."""
    live = ledger.live_bytes(small, count)
    return np.array([live[max(0, i - SMALL_SHIFT) : i + SMALL_SHIFT + 1].max() for i in range(count)], np.int64)
