"""Which buffers a step needs, and how many bytes are live while each op runs. No TensorFlow here.

A *storage* is a buffer: the tensor whose op allocated it, and all tensors that alias it (reshape, identity, some slices).

LIVE-1  An op allocates its outputs, and its workspace for as long as it runs.
LIVE-2  An output of an aliasing op shares its input's storage.
LIVE-3  A forwarding kernel writes into the storage of an input if it reads that once, the storage dies there, and the input has
        the size of the kernel's first output. The input may be a view of a part: the output then holds all of the storage. Not so
        for the kernels that have a guard (`lms3d.engine.passes.guard`), which takes memory before an op that reads a view.
LIVE-4  Ops that read only a shape (Shape, Size, ...) run early and hold no storage: they are not readers.
LIVE-5  A storage is freed after its last reader, unless it is resident (counted once, in `resident_bytes`) or returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lms3d.engine.ir import CALLING_TYPES, FORWARDING_TYPES, METADATA_TYPES, RESIDENT_TYPES, Op, StepGraph, Tensor


@dataclass(frozen=True, slots=True)
class Storage:
    """A buffer: its root tensor, size, and the names of the ops that read it (through any alias)."""

    root: str
    bytes: int
    readers: frozenset[str]
    resident: bool = False
    returned: bool = False


def aliased_input(op: Op, output_index: int) -> str | None:
    """The input whose buffer this output shares, or None (LIVE-2)."""
    if not op.shares_input or not op.inputs or not op.on_device:
        return None
    return op.inputs[output_index] if op.type == "IdentityN" else op.inputs[0]


@lru_cache(maxsize=8)
def _roots(ops: tuple[Op, ...]) -> dict[str, str]:
    roots: dict[str, str] = {}
    for op in ops:
        for i, tensor in enumerate(op.outputs):
            source = aliased_input(op, i)
            roots[tensor.name] = roots.get(source, source) if source else tensor.name
    return roots


def roots(graph: StepGraph) -> dict[str, str]:
    """Tensor name -> name of the tensor that owns its storage."""
    return _roots(graph.ops)


def storages(graph: StepGraph) -> dict[str, Storage]:
    """Root tensor name -> storage, for every storage of a known size above zero."""
    root_of = roots(graph)
    readers: dict[str, set[str]] = {}
    for op in graph.ops:
        for name in () if op.type in METADATA_TYPES else op.inputs:  # LIVE-4
            if name in root_of:
                readers.setdefault(root_of[name], set()).add(op.name)
    returned = {root_of[t] for t in graph.returned if t in root_of}
    found = {}
    for op in graph.ops:
        for tensor in op.outputs:
            if tensor.bytes and root_of[tensor.name] == tensor.name and op.on_device:
                found[tensor.name] = Storage(
                    tensor.name,
                    tensor.bytes,
                    frozenset(readers.get(tensor.name, ())),
                    op.type in RESIDENT_TYPES,
                    tensor.name in returned,
                )
    return found


def read_once(graph: StepGraph, op: Op, root_of: Mapping[str, str]) -> dict[str, int]:
    """The storages (roots) that an op reads once, and the bytes of the tensors through which it does.

    A storage that it reads as two inputs has two holders, and is left out; so is a part, if the op has a guard (LIVE-3).
    """
    inputs = [t for t in op.inputs if t in root_of]
    read = [root_of[t] for t in inputs]
    once = {root: graph.tensors[t].bytes or 0 for t, root in zip(inputs, read, strict=True) if read.count(root) == 1}
    return {root: seen for root, seen in once.items() if op.type not in _GUARDED or seen == graph.tensors[root].bytes}


def forwarded(op: Op, candidates: Sequence[tuple[str, int]]) -> str | None:
    """The storage (root) that `op` may overwrite (LIVE-3). candidates: (root, bytes read) of dying storages, each read once."""
    if op.type not in FORWARDING_TYPES or not op.outputs or not op.outputs[0].bytes:
        return None
    return next((root for root, size in candidates if size == op.outputs[0].bytes), None)


@lru_cache(maxsize=8)
def lasting(graph: StepGraph) -> frozenset[str]:
    """The storages (roots) that may be read after the step, or by an unknown op.

    A variable may share the buffer that it is assigned, and a returned tensor may be a part of one. Kernels decide that; in doubt,
    a storage lasts.
    """
    root_of = roots(graph)
    lasts = set(graph.returned)
    for op in reversed(graph.ops):
        if op.type in METADATA_TYPES:
            continue
        kept = [t for t in op.outputs if t.name in lasts]
        for name in op.inputs:
            if op.stateful or op.in_loop or op.type in _UNKNOWN or any(_may_pass_on(graph, op, name, t) for t in kept):
                lasts.add(name)
    return frozenset(root_of.get(name, name) for name in lasts)


# Ops that run whole functions, and ops that write into an input even if it has other readers.
_UNKNOWN = CALLING_TYPES | {"PyFuncStateless", "InplaceAdd", "InplaceSub", "InplaceUpdate"}
_GUARDED = frozenset({"Elu", "LeakyRelu", "Relu", "Relu6", "Softmax", "Tanh"})  # of FORWARDING_TYPES
SLICE_TYPES = frozenset({"Slice", "Split", "SplitV", "StridedSlice", "Unpack"})


def _may_pass_on(graph: StepGraph, op: Op, name: str, output: Tensor) -> bool:
    """Whether an output may share the buffer of an input: all of it, like a Transpose that moves no axis, or a slice."""
    if op.shares_input or op.type in SLICE_TYPES or output.bytes is None:
        return True
    makes_its_own = op.type in FORWARDING_TYPES and op.type != "AddN"  # AddN passes on a single input
    tensor = graph.tensors.get(name)
    return not makes_its_own and (tensor is None or tensor.bytes in (None, output.bytes))


class Touched(NamedTuple):
    """The storages (by root) that a running op reads, and its outputs that no op reads; whether it allocates or frees any; its
    workspace, to be given back."""

    read: list[str]
    unread: list[str]
    changes: bool
    workspace: Change


class Change(NamedTuple):
    """A piece of memory that is taken (bytes > 0), given back (< 0), or taken over from `source` (0).

    name: of a storage (its root), or of an op, for its workspace.
    """

    name: str
    bytes: int
    source: str = ""


class LiveStorages:
    """The storages that are live while ops run one by one, in any order: `begin` and `finish` each of them.

    live_bytes: live now; peak_bytes: the most so far, workspaces included. changes: what was taken and given back so far, in order.
    """

    def __init__(self, graph: StepGraph) -> None:
        self.graph, self.root_of, self.stores = graph, roots(graph), storages(graph)
        self.live_bytes = self.peak_bytes = graph.resident_bytes
        self._held = {root: store.bytes for root, store in self.stores.items()}  # more, of what took a storage over
        self._pending = {root: len(store.readers) for root, store in self.stores.items()}
        # LIVE-5: a storage that stays, or that an op took over, is not freed.
        self._stay = {root for root, store in self.stores.items() if store.resident or store.returned}
        self.changes: list[Change] = []
        self._made: set[str] = set()  # a loop reads a tensor of its last round before it makes the next

    def begin(self, op: Op) -> Touched:
        """Allocate the outputs of `op` (LIVE-1); returns the argument of `finish`."""
        inputs = () if op.type in METADATA_TYPES else op.inputs  # LIVE-4
        read = sorted({self.root_of[t] for t in inputs if self.root_of.get(t) in self.stores})
        dying = [root for root in read if self._pending[root] == 1 and root in self._made and root not in self._stay]
        reused = None
        if dying and op.type in FORWARDING_TYPES and op.on_device:
            once = read_once(self.graph, op, self.root_of)
            reused = forwarded(op, [(root, once[root]) for root in dying if root in once])
        made = [t.name for t in op.outputs if t.name in self.stores and not self.stores[t.name].resident]
        self._made.update(made)
        if reused is not None:  # LIVE-3
            self._stay.add(reused)
            self.live_bytes -= self._held[reused]
            self._held[op.outputs[0].name] = self._held[reused]
        self.live_bytes += self._bytes(made)
        for name in made:
            taken_over = reused is not None and name == op.outputs[0].name
            self.changes.append(Change(name, 0, reused or "") if taken_over else Change(name, self.stores[name].bytes))
        if op.workspace_bytes:
            self.changes.append(Change(op.name, op.workspace_bytes))
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + op.workspace_bytes)
        unread = [name for name in made if self._pending[name] == 0 and name not in self._stay]
        return Touched(read, unread, bool(made or dying), Change(op.name, -op.workspace_bytes))

    def finish(self, touched: Touched) -> None:
        """Free the storages without remaining readers (LIVE-5)."""
        for root in touched.read:
            self._pending[root] -= 1
        ended = [
            root for root in touched.read if self._pending[root] == 0 and root in self._made and root not in self._stay
        ]
        self.live_bytes -= self._bytes(ended) + self._bytes(touched.unread)
        if touched.workspace.bytes:
            self.changes.append(touched.workspace)
        self.changes += [Change(root, -self._held[root]) for root in (*ended, *touched.unread)]

    def _bytes(self, found: list[str]) -> int:
        return sum(self._held[root] for root in found)


def live_bytes(graph: StepGraph) -> np.ndarray:
    """Bytes on the device while each op of `graph.ops` runs, in that order, one after the other: int64, shape (ops,)."""
    live, curve = LiveStorages(graph), np.zeros(len(graph.ops), np.int64)
    for i, op in enumerate(graph.ops):
        touched = live.begin(op)
        curve[i] = live.live_bytes + op.workspace_bytes
        live.finish(touched)
    return curve


def peak_bytes(graph: StepGraph) -> int:
    """The largest of `live_bytes`; the resident bytes for an empty step."""
    return int(live_bytes(graph).max(initial=graph.resident_bytes))
