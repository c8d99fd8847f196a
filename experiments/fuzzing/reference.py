"""The simulator once more, as slow and as plain as can be, from the rules in `simulate` and `liveness` and none of their code.

All that is live is counted anew whenever something begins or ends, from what has begun and ended so far.
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


@dataclass
class Memory:
    """What is live, by the ops (as numbers) that have begun and ended. over: storage -> the op that writes into it (LIVE-3)."""

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
        """Live now."""
        return self.graph.resident_bytes + sum(size for s, (_, size) in self.makers.items() if self._live(s))

    def _live(self, storage: str) -> bool:
        maker, _ = self.makers[storage]
        if maker not in self.begun or self.over.get(storage) in self.begun:
            return False
        needed = not {maker, *self.readers[storage]} <= self.ended  # LIVE-5
        return needed or storage in self.returned

    def begin(self, i: int) -> int:
        """Begin an op; bytes while it runs."""
        op = self.graph.ops[i]
        taken = self._overwritten(i, op)
        if taken is not None:
            self.over[taken] = i
        self.begun.add(i)
        return self.bytes() + op.workspace_bytes

    def _overwritten(self, i: int, op: Op) -> str | None:
        if op.type not in FORWARDING_TYPES or not op.outputs or op.outputs[0].name not in self.makers:
            return None
        size = {t: self.graph.tensors[t].bytes for t in op.inputs if t in self.graph.tensors}
        whole = {s for s in self.reads[i] if s in self.makers and self._read_whole(op, s)}
        return (
            min(
                (
                    s
                    for s in whole
                    if s not in self.returned
                    and s not in self.over
                    and self.makers[s][0] in self.begun
                    and self.readers[s] - self.ended == {i}
                    and self.makers[s][1] == op.outputs[0].bytes
                ),
                default=None,
            )
            if size
            else None
        )

    def _read_whole(self, op: Op, storage: str) -> bool:
        owner, tensors = owners(self.graph), self.graph.tensors
        reads = [t for t in op.inputs if owner.get(t) == storage]
        return len(reads) == 1 and tensors[reads[0]].bytes == tensors[storage].bytes


def live_bytes(graph: StepGraph) -> list[int]:
    """Bytes while each op runs, one after the other."""
    memory, found = Memory(graph), []
    for i in range(len(graph.ops)):
        found.append(memory.begin(i))
        memory.ended.add(i)
    return found


def run(graph: StepGraph, machine: Machine) -> tuple[int, float]:
    """(peak bytes, seconds) of a step under SIM-1 to SIM-6. Of two ops that end at the same instant the earlier in the graph ends
    first, and what waited for it begins before the other ends."""
    memory, peak, clock = Memory(graph), graph.resident_bytes, 0.0
    running: dict[str, tuple[float, int]] = {}  # lane -> (end, op)
    while True:
        while (i := _next(graph, machine, memory, running)) is not None:
            peak = max(peak, memory.begin(i))
            seconds = _seconds(graph, graph.ops[i], machine)
            if seconds:
                running[_lane(graph.ops[i])] = (clock + seconds, i)
            else:
                memory.ended.add(i)
        if not running:
            break
        lane = min(running, key=lambda lane: running[lane])
        clock, i = running.pop(lane)
        memory.ended.add(i)
    assert len(memory.ended) == len(graph.ops)
    return peak, clock


def _next(graph: StepGraph, machine: Machine, memory: Memory, running: dict[str, tuple[float, int]]) -> int | None:
    """What begins next: what takes no time (SIM-2), then the earliest op of a lane that is free (SIM-1, SIM-3)."""
    ready = [i for i in range(len(graph.ops)) if i not in memory.begun and _sources(graph, i) <= memory.ended]
    for lane in LANES:
        here = [i for i in ready if _lane(graph.ops[i]) == lane and lane not in running]
        if here:
            return min(here, key=lambda i: (_seconds(graph, graph.ops[i], machine) > 0, i))
    return None


def _sources(graph: StepGraph, i: int) -> set[int]:
    """What an op waits for. In a loop: only for what stands before it, since the others run in a circle."""
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
