"""A step, reduced to what a planner must decide: large buffers and the ops that touch them. No TensorFlow here.

A traced step has thousands of ops; a few hundred *anchors* touch large buffers and take nearly all the time. The
planner fixes the order of the anchors. Everything else is small, runs whenever it can, and counts as a constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lms3d.swap.cost import Machine, op_seconds
from lms3d.swap.ir import (
    ALIAS_TYPES,
    FORWARDING_TYPES,
    METADATA_TYPES,
    RESIDENT_TYPES,
    Op,
    StepGraph,
    paired,
    producer_name,
)
from lms3d.swap.liveness import Storage, roots, storages

# Below this share of all large bytes a buffer is not worth a decision.
SMALLEST_SHARE = 1 / 2000
SMALLEST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A storage that the planner may keep, swap or recompute. Positions are indices of anchors."""

    root: str
    bytes: int
    defined: int
    reads: tuple[int, ...]
    parents: tuple[int, ...]  # buffers that its op reads, as indices
    returned: bool
    swappable: bool
    recomputable: bool
    seconds: float  # to compute it again
    in_place: bool  # its op may write into a parent that nobody needs afterwards


@dataclass(frozen=True)
class Problem:
    """Anchors in the order in which they will run, with seconds and workspace bytes, and the buffers between them."""

    graph: StepGraph
    anchors: tuple[str, ...]
    seconds: np.ndarray
    workspace_bytes: np.ndarray
    buffers: tuple[Buffer, ...]
    base_bytes: int


def reduce(graph: StepGraph, machine: Machine) -> Problem:
    """The planner's view of `graph` on `machine`."""
    stores = storages(graph)
    movable = {root: s for root, s in stores.items() if not s.resident}
    threshold = max(SMALLEST_BYTES, int(sum(s.bytes for s in movable.values()) * SMALLEST_SHARE))
    large = {root: s for root, s in movable.items() if s.bytes >= threshold}
    root_of = roots(graph)
    anchors = [op for op in graph.ops if _is_anchor(op, large, root_of)]
    if not anchors:  # only ops that may not be touched make large buffers
        large = {}
    position = {op.name: i for i, op in enumerate(anchors)}
    index = {root: i for i, root in enumerate(large)}
    buffers = tuple(
        _buffer(graph, graph.by_name[producer_name(root)], store, position, index, root_of, machine)
        for root, store in large.items()
    )
    return Problem(
        graph,
        tuple(op.name for op in anchors),
        np.array([op_seconds(graph, op, machine) for op in anchors]),
        np.array([op.workspace_bytes for op in anchors], np.int64),
        buffers,
        graph.resident_bytes + _small_peak(graph, [s for root, s in movable.items() if root not in large]),
    )


def _is_anchor(op: Op, large: dict[str, Storage], root_of: dict[str, str]) -> bool:
    if (
        not op.on_device
        or op.in_loop
        or op.type in ALIAS_TYPES
        or op.type in METADATA_TYPES
        or op.type in RESIDENT_TYPES
    ):
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
        swappable=op.name in position
        and not touched_in_loop
        and not store.returned
        and rank is not None
        and not any(paired(op, graph.by_name[r]) for r in store.readers),
        recomputable=op.name in position
        and not touched_in_loop
        and not store.returned
        and not op.stateful
        and not _is_random(op),
        seconds=op_seconds(graph, op, machine),
        in_place=op.type in FORWARDING_TYPES and op.outputs[0].name == store.root,
    )


def _is_random(op: Op) -> bool:
    """Stateless random ops would give the same numbers again, but nothing random is worth the risk."""
    return "Random" in op.type or "Multinomial" in op.type


def _small_peak(graph: StepGraph, small: list[Storage]) -> int:
    """The most bytes of small buffers that live together in the traced order."""
    change = np.zeros(len(graph.ops) + 2, np.int64)
    for store in small:
        start = graph.index[producer_name(store.root)]
        end = max((graph.index[r] for r in store.readers), default=start)
        change[start] += store.bytes
        change[(len(graph.ops) if store.returned else end) + 1] -= store.bytes
    return int(change.cumsum().max())
