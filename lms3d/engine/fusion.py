"""Which ops of a step become one compiled program, and what such a program reads and returns. No TensorFlow here.

    convolution --> a --> b --> c --> convolution          convolution --> program --> convolution
                     \\--> d ........> gradient of d                 \\.......> gradient's program, which recomputes d

FUSION-1  A group is connected, and no path leads out of it and back in. Each op has a stage: the largest number of times that a
          path to it enters ops that can be compiled. The ops of a group have one stage, and edges connect them. So all groups
          together make no cycle either. Control edges count like others; within a program they are gone, since its ops have no
          effects.
FUSION-2  A program returns the tensors that are read outside of it. Views at its edge stay in the step: they have no memory of
          their own.
FUSION-3  A program rematerialises tensors if that takes no pass over memory of its own. A smallest cut, between the tensors that
          its group reads and tensors in memory anyway, says what it reads (`Cut`). Tensors that only its group read are then
          no longer kept: the gradient of a normalisation and its activation needs the convolution's result and some numbers per
          channel. Sums are not rematerialised.
FUSION-4  Groups are decided on from the last one to the first: a forward program need not return a tensor that a gradient no longer
          reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from lms3d.engine.cost import moved_bytes
from lms3d.engine.ir import (
    PROGRAM_TYPE,
    RESIDENT_TYPES,
    Op,
    StepGraph,
    producer_name,
    topological,
    without_dead,
)
from lms3d.engine.liveness import roots

ELEMENTWISE, REDUCTION, VIEW = "elementwise", "reduction", "view"

SCOPE = "compiled/"
"""The scope of the programs' names in a step."""

_ANY = 1 << 30  # KiB: an edge that no cut goes through


@dataclass(frozen=True, kw_only=True)
class Fusible:
    """The ops that may be compiled. kinds: op -> ELEMENTWISE, REDUCTION or VIEW. folded: tensors that a program holds as
    constants."""

    kinds: Mapping[str, str]
    folded: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Program:
    """One call in place of `ops`, which are in traced order. computed: the ops among them that its outputs need.

    rematerialised: earlier ops that it runs once more. plain_inputs: the tensors that it would read without those. kept_views: ops
    of the group that stay in the step. saved_bytes: size of the tensors that are no longer kept for it (FUSION-3).
    """

    ops: tuple[str, ...]
    computed: tuple[str, ...]
    rematerialised: tuple[str, ...]
    inputs: tuple[str, ...]
    plain_inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    control_inputs: tuple[str, ...] = ()
    kept_views: frozenset[str] = frozenset()
    saved_bytes: int = 0

    def without_rematerialisation(self) -> Program:
        """The same program if it rematerialises nothing: the tensors that its ops read are kept."""
        return replace(self, rematerialised=(), inputs=self.plain_inputs, saved_bytes=0)

    @property
    def name(self) -> str:
        return SCOPE + producer_name(self.outputs[0])

    @property
    def replaced(self) -> set[str]:
        """The ops that leave the step."""
        return set(self.ops) - self.kept_views


def groups(graph: StepGraph, fusible: Fusible) -> list[tuple[str, ...]]:
    """The ops of each group in traced order; groups of later stages come first (FUSION-1). One op alone is no group."""
    stage = _stages(graph, fusible)
    leader = {name: name for name in stage}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    for op in graph.ops:
        for source in _before(op, fusible) if op.name in fusible.kinds else ():
            if source in fusible.kinds and stage[source] == stage[op.name]:
                leader[find(source)] = find(op.name)
    members: dict[str, list[str]] = {}
    for op in graph.ops:
        if op.name in fusible.kinds:
            members.setdefault(find(op.name), []).append(op.name)
    found = [tuple(names) for names in members.values() if sum(fusible.kinds[n] != VIEW for n in names) > 1]
    return sorted(found, key=lambda names: -stage[names[0]])


def _stages(graph: StepGraph, fusible: Fusible) -> dict[str, int]:
    stage: dict[str, int] = {}
    for op in graph.ops:
        enters = op.name in fusible.kinds
        before = (stage.get(name, 0) + (enters and name not in fusible.kinds) for name in _before(op, fusible))
        stage[op.name] = max(before, default=0)
    return stage


def _before(op: Op, fusible: Fusible) -> Iterator[str]:
    """The ops that `op` waits for, except for those whose results a program holds as constants."""
    yield from (producer_name(t) for t in op.inputs if op.name not in fusible.kinds or t not in fusible.folded)
    yield from op.control_inputs


def program(graph: StepGraph, group: Sequence[str], fusible: Fusible) -> Program | None:
    """The program for the ops of a group that are still in the step; None if nobody outside reads them, or they read nothing."""
    ops = [graph.by_name[name] for name in group if name in graph.by_name]
    inside = {op.name for op in ops}
    outputs, kept = _outputs(graph, ops, fusible.kinds)
    computed = _needed(ops, outputs)
    if not _reads(computed, fusible.folded):
        return None
    cut = Cut(graph, computed, fusible)
    rematerialised = cut.rematerialised()
    return Program(
        ops=tuple(op.name for op in ops),
        computed=tuple(op.name for op in computed),
        rematerialised=tuple(op.name for op in rematerialised),
        inputs=tuple(_reads([*rematerialised, *computed], fusible.folded)),
        plain_inputs=tuple(_reads(computed, fusible.folded)),
        outputs=tuple(outputs),
        control_inputs=tuple(sorted({c for op in ops for c in op.control_inputs} - inside)),
        kept_views=frozenset(kept),
        saved_bytes=cut.saved_bytes,
    )


def _outputs(graph: StepGraph, ops: Sequence[Op], kinds: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """The tensors that are read outside of the group, and the views that stay in the step (FUSION-2)."""
    inside = {op.name: op for op in ops}
    outputs: dict[str, None] = {}
    kept: set[str] = set()

    def needed(name: str) -> None:
        maker = inside.get(producer_name(name))
        if maker is None:
            return
        if kinds[maker.name] != VIEW:
            outputs[name] = None
        elif maker.name not in kept:
            kept.add(maker.name)
            needed(maker.inputs[0])

    for op in ops:
        for tensor in op.outputs:
            outside = any(reader not in inside for reader in graph.consumers.get(tensor.name, ()))
            if outside or tensor.name in graph.returned:
                needed(tensor.name)
    return list(outputs), kept


def _needed(ops: Sequence[Op], outputs: Collection[str]) -> list[Op]:
    """The ops that these outputs need, in their order. Other ops only make views that stay in the step."""
    needed = set(outputs)
    for op in reversed(ops):
        if any(t.name in needed for t in op.outputs):
            needed.update(op.inputs)
    return [op for op in ops if any(t.name in needed for t in op.outputs)]


def _reads(ops: Sequence[Op], folded: Collection[str]) -> list[str]:
    """The tensors that the ops read and do not make, each once."""
    made = {t.name for op in ops for t in op.outputs}
    return list(dict.fromkeys(t for op in ops for t in op.inputs if t not in made and t not in folded))


class Cut:
    """The tensors that a group reads best (FUSION-3). A tensor costs its bytes, or nothing if it is in memory anyway by then."""

    def __init__(self, graph: StepGraph, ops: Sequence[Op], fusible: Fusible) -> None:
        self.graph, self.fusible = graph, fusible
        self.root_of, self.by_root = roots(graph), _by_root(graph)
        self.inside = {op.name for op in ops}
        self.start = min(graph.index[op.name] for op in ops)
        self.reads = _reads(ops, fusible.folded)
        self.behind: dict[str, list[str]] = {}  # tensor -> the tensors it can be made from; empty: it cannot
        left = list(self.reads)
        while left:
            name = left.pop()
            if name not in self.behind:
                self.behind[name] = self._sources(name)
                left += self.behind[name]
        self.costs = {name: self._kibibytes(name) for name in self.behind}
        self.chosen = self._chosen()
        self.saved_bytes = 1024 * max(0, self._cost(self.reads) - self._cost(self.chosen))

    def rematerialised(self) -> list[Op]:
        """The ops that make the group's inputs from `chosen`, in traced order."""
        found: dict[str, Op] = {}
        left = [name for name in self.reads if name not in self.chosen]
        while left:
            op = self.graph.by_name[producer_name(left.pop())]
            if op.name not in found:
                found[op.name] = op
                left += [t for t in op.inputs if t not in self.chosen and t not in self.fusible.folded]
        return sorted(found.values(), key=lambda op: self.graph.index[op.name])

    def _sources(self, name: str) -> list[str]:
        op = self.graph.by_name[producer_name(name)]
        if self.fusible.kinds.get(op.name) not in (ELEMENTWISE, VIEW) or op.name in self.inside:
            return []
        return [t for t in op.inputs if t not in self.fusible.folded]

    def _kibibytes(self, name: str) -> int:
        """KiB that would have to be kept, and one more, so that of two cuts of equal size the one through fewer tensors wins."""
        return 0 if self._there_anyway(name) else 1 + ((self.graph.tensors[name].bytes or 0) >> 10)

    def _there_anyway(self, name: str) -> bool:
        root = self.root_of[name]
        if self.graph.by_name[producer_name(root)].type in RESIDENT_TYPES:
            return True
        names, readers = self.by_root[root]
        return bool(names & self.graph.returned) or any(
            i >= self.start and self.graph.ops[i].name not in self.inside for i in readers
        )

    def _cost(self, names: Collection[str]) -> int:
        return sum(max(0, self.costs[name] - 1) for name in names)

    def _chosen(self) -> set[str]:
        """The smallest cut; of several the nearest to the group. Nodes 2i and 2i + 1 are the two sides of tensor i."""
        if not any(self.behind.values()):
            return set(self.reads)
        number = {name: i for i, name in enumerate(self.behind)}
        source, sink = 2 * len(number), 2 * len(number) + 1
        edges = [(2 * i, 2 * i + 1, self.costs[name]) for name, i in number.items()]
        edges += [(2 * number[t] + 1, 2 * number[name], _ANY) for name, ts in self.behind.items() for t in set(ts)]
        edges += [(source, 2 * number[name], _ANY) for name, ts in self.behind.items() if not ts]
        edges += [(2 * number[name] + 1, sink, _ANY) for name in self.reads]
        near = _sink_side(edges, source, sink)
        return {name for name, i in number.items() if 2 * i not in near and 2 * i + 1 in near}


def _sink_side(edges: Sequence[tuple[int, int, int]], source: int, sink: int) -> set[int]:
    """The nodes that still have a path to the sink when the flow from the source is largest."""
    tails, heads, capacities = zip(*edges, strict=True)
    size = sink + 1
    network = coo_array((np.array(capacities, np.int32), (tails, heads)), (size, size)).tocsr()
    residual = (network - maximum_flow(network, source, sink).flow).tocsc()
    near, left = {sink}, [sink]
    while left:
        head = left.pop()
        span = slice(residual.indptr[head], residual.indptr[head + 1])
        for tail in residual.indices[span][residual.data[span] > 0].tolist():
            if tail not in near:
                near.add(tail)
                left.append(tail)
    return near


@lru_cache(maxsize=2)
def _by_root(graph: StepGraph) -> dict[str, tuple[set[str], list[int]]]:
    """Root of a storage -> its tensors, and the places of the ops that read it; views do not count."""
    found: dict[str, tuple[set[str], list[int]]] = {}
    root_of = roots(graph)
    for name, root in root_of.items():
        found.setdefault(root, (set(), []))[0].add(name)
    for i, op in enumerate(graph.ops):
        for name in () if op.shares_input else op.inputs:
            found[root_of[name]][1].append(i)
    return found


def contracted(graph: StepGraph, made: Program, wanted: Collection[str], *, workspace_bytes: int = 0) -> StepGraph:
    """The step with a program in place of its ops, without ops that nobody reads any more. wanted: see `ir.without_dead`."""
    gone = made.replaced
    outputs = [replace(graph.tensors[t], name=f"{made.name}:{i}") for i, t in enumerate(made.outputs)]
    renamed = {old: new.name for old, new in zip(made.outputs, outputs, strict=True)}
    call = Op(
        name=made.name,
        type=PROGRAM_TYPE,
        inputs=made.inputs,
        control_inputs=made.control_inputs,
        outputs=tuple(outputs),
        workspace_bytes=workspace_bytes,
    )
    ops: list[Op] = []
    for op in graph.ops:
        if op.name == made.ops[0]:
            ops.append(call)
        if op.name not in gone:
            ops.append(_after(op, renamed, gone, made.name))
    returned = frozenset(renamed.get(t, t) for t in graph.returned)
    there = {op.name for op in ops}
    alive = without_dead(ops, [*(n for n in wanted if n in there), *map(producer_name, returned)])
    return replace(graph, ops=topological(alive), returned=returned, _checked=True)


def _after(op: Op, renamed: Mapping[str, str], gone: Collection[str], program_name: str) -> Op:
    """An op that stays: it reads the program's outputs, and waits for the program if it waited for one of its ops."""
    waits = tuple(dict.fromkeys(program_name if c in gone else c for c in op.control_inputs))
    return replace(op, inputs=tuple(renamed.get(t, t) for t in op.inputs), control_inputs=waits)


def moved(graph: StepGraph, names: Collection[str]) -> int:
    """The bytes that these ops read and write, one by one."""
    return sum(moved_bytes(graph, op) for op in _works(graph, names))


def written(graph: StepGraph, names: Collection[str]) -> int:
    """The bytes of the tensors that these ops make."""
    return sum(t.bytes or 0 for op in _works(graph, names) for t in op.outputs)


def _works(graph: StepGraph, names: Collection[str]) -> Iterator[Op]:
    return (op for op in map(graph.by_name.__getitem__, names) if not op.shares_input)
