"""The simulator once more, as slow and as plain as can be, from the rules in `simulate` and `liveness` and none of their code.

All live bytes are counted anew whenever an op begins or ends, from the ops that have begun and ended so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lms3d.engine.cost import Machine, op_seconds
from lms3d.engine.ir import ALIAS_TYPES, FORWARDING_TYPES, METADATA_TYPES, RESIDENT_TYPES, Op, StepGraph

LANES = ("compute", "out", "in")


def owners(graph: StepGraph) -> dict[str, str]:
    """Tensor -> the tensor whose memory it lies in (LIVE-2)."""
    found: dict[str, str] = {}
    for op in graph.ops:
        shares = op.on_device and op.inputs and (op.view or op.type in ALIAS_TYPES)
        for i, tensor in enumerate(op.outputs):
            source = op.inputs[i if op.type == "IdentityN" else 0] if shares else tensor.name
            found[tensor.name] = found.get(source, source)
    return found


_GUARDED = {"Elu", "LeakyRelu", "Relu", "Relu6", "Softmax", "Tanh"}
"""LIVE-3 does not hold for these if they read a part."""


@dataclass
class Memory:
    """The live storages, by the ops (as numbers) that have begun and ended. over: storage -> the op that overwrites it (LIVE-3)."""

    graph: StepGraph
    begun: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    over: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner = owners(self.graph)
        self.reads = [
            set() if op.type in METADATA_TYPES else {owner.get(t, t) for t in op.inputs} for op in self.graph.ops
        ]  # LIVE-4
        self.makers = {
            t.name: (i, t.bytes)
            for i, op in enumerate(self.graph.ops)
            for t in op.outputs
            if t.bytes and owner[t.name] == t.name and op.on_device and op.type not in RESIDENT_TYPES
        }
        self.returned = {owner[t] for t in self.graph.returned}
        self.readers = {s: {i for i, read in enumerate(self.reads) if s in read} for s in self.makers}

    def bytes(self) -> int:
        """The bytes that are live now."""
        return self.graph.resident_bytes + sum(self._held(s) for s in self.makers if self._live(s))

    def _held(self, storage: str) -> int:
        """The bytes of a storage: all of the one that its op overwrote, if any."""
        maker, size = self.makers[storage]
        first = self.graph.ops[maker].outputs[0].name == storage
        return next((self._held(old) for old, by in self.over.items() if by == maker and first), size)

    def _live(self, storage: str) -> bool:
        maker, _ = self.makers[storage]
        if maker not in self.begun or self.over.get(storage) in self.begun:
            return False
        needed = not {maker, *self.readers[storage]} <= self.ended  # LIVE-5
        return needed or storage in self.returned

    def begin(self, i: int) -> int:
        """Begins an op. Returns the bytes while it runs."""
        op = self.graph.ops[i]
        taken = self._overwritten(i, op)
        if taken is not None:
            self.over[taken] = i
        self.begun.add(i)
        return self.bytes() + op.workspace_bytes

    def _overwritten(self, i: int, op: Op) -> str | None:
        if op.type not in FORWARDING_TYPES or not op.outputs or op.outputs[0].name not in self.makers:
            return None
        kept = self.returned | self.over.keys()
        may = [s for s in self.reads[i] - kept if s in self.makers and self._seen(op, s) == op.outputs[0].bytes]
        last = [s for s in may if self.makers[s][0] in self.begun and self.readers[s] - self.ended == {i}]
        return min(last, default=None)

    def _seen(self, op: Op, storage: str) -> int | None:
        """The bytes that an op reads of a storage; None if it reads it as two inputs."""
        owner = owners(self.graph)
        reads = [t for t in op.inputs if owner.get(t) == storage]
        seen = self.graph.tensors[reads[0]].bytes if len(reads) == 1 else None
        return seen if op.type not in _GUARDED or seen == self.makers[storage][1] else None


def live_bytes(graph: StepGraph) -> list[int]:
    """The bytes while each op runs, one after the other."""
    memory, found = Memory(graph), []
    for i in range(len(graph.ops)):
        found.append(memory.begin(i))
        memory.ended.add(i)
    return found


def run(graph: StepGraph, machine: Machine) -> tuple[int, float]:
    """(peak bytes, seconds) of a step under SIM-1 to SIM-6. If two ops end at the same instant, the earlier one ends first,
    and the ops that waited for it begin before the other ends."""
    memory, started, peak, clock = Memory(graph), set[int](), graph.resident_bytes, 0.0
    running: dict[str, tuple[float, int]] = {}  # lane -> (end, op)
    seconds = [_seconds(graph, op, machine) for op in graph.ops]
    while len(memory.ended) < len(graph.ops):
        ready = [i for i in range(len(graph.ops)) if i not in started and _sources(graph, i) <= memory.ended]
        free = [i for i in ready if _lane(graph.ops[i]) not in running]
        waiting = [i for i in ready if _lane(graph.ops[i]) == "in" and seconds[i]]
        if free:  # SIM-1, SIM-3; SIM-2: what takes no time comes first
            i = min(free, key=lambda i: (LANES.index(_lane(graph.ops[i])), seconds[i] > 0, i))
        for begun in (*waiting, *([i] if free else [])):  # SIM-4: a swap-in takes its memory before it has the link
            if begun not in memory.begun:
                peak = max(peak, memory.begin(begun))
        if free:
            started.add(i)
            if seconds[i]:
                running[_lane(graph.ops[i])] = (clock + seconds[i], i)
                continue
        else:
            clock, i = running.pop(min(running, key=lambda lane: running[lane]))
        memory.ended.add(i)
    return peak, clock


def _sources(graph: StepGraph, i: int) -> set[int]:
    """The ops that an op waits for; in a loop only the earlier ones, since the others run in a circle."""
    op = graph.ops[i]
    found = {graph.index[t.rpartition(":")[0]] for t in op.inputs} | {graph.index[c] for c in op.control_inputs}
    return {j for j in found if j < i} if op.in_loop else found


def _lane(op: Op) -> str:
    return {"SwapOut": "out", "SwapIn": "in"}.get(op.type, "compute")


def _seconds(graph: StepGraph, op: Op, machine: Machine) -> float:
    if op.type == "SwapOut":
        return (graph.tensors[op.inputs[0]].bytes or 0) / machine.swap_out_bytes_per_second
    if op.type == "SwapIn":
        return (op.outputs[0].bytes or 0) / machine.swap_in_bytes_per_second
    return op_seconds(graph, op, machine)
