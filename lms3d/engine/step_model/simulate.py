"""A step on a machine, event by event: when each op runs, how many bytes are live, how long it takes. No TensorFlow here.

The executor is modelled as a list scheduler:

SIM-1  Compute is serial: among the ready ops, the earliest in the graph's order runs next.
SIM-2  Ops that move no data (identities, shapes, constants, swap-ins that are read in place) take no time and run at once.
SIM-3  Swap-outs and swap-ins run on one serial link each, as soon as they are ready, and overlap with compute.
SIM-4  A swap-out holds its input until it is complete. A swap-in takes its memory as soon as its triggers have run, although it
       may wait for the link.
SIM-5  Buffers come and go by the rules of `liveness`.
SIM-6  A loop runs once: its ops wait for the ops before them, not for the iteration before.

The real executor may run small ops side by side, and picks among ready ops in its own order. So without a planned order the true
peak may differ by some per cent.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from lms3d.engine.cost import Machine, op_seconds
from lms3d.engine.ir import Op, StepGraph, producer_name
from lms3d.engine.liveness import Change, LiveStorages, Touched

_COMPUTE, _OUT, _IN = "compute", "swap out", "swap in"
LANES = (_COMPUTE, "recompute", _OUT, _IN)


@dataclass(frozen=True)
class SimulatedStep:
    """The peak, the seconds and the timeline of one step. The timeline has one point per op that takes time or memory.

    busy: for each of `LANES` the (start, end) in seconds of its work, in order; work without a pause is one piece.
    spans: op -> its (start, end), of the ops that take time, in the order in which they start.
    changes: the pieces of memory that are taken and given back, in order.
    """

    peak_bytes: int
    seconds: float
    timeline_seconds: tuple[float, ...]
    timeline_bytes: tuple[int, ...]
    busy: Mapping[str, tuple[tuple[float, float], ...]]
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()

    @property
    def waiting(self) -> tuple[tuple[float, float], ...]:
        """The (start, end) in seconds of the times in which the step computes nothing and waits for a transfer."""
        working = sorted(piece for lane in LANES[:2] for piece in self.busy[lane])
        ends = [0.0, *(end for _, end in working)]
        starts = [*(start for start, _ in working), self.seconds]
        return tuple((end, start) for end, start in zip(ends, starts, strict=True) if start > end)


def simulate(graph: StepGraph, machine: Machine) -> SimulatedStep:
    """One step of `graph` (edited or not) on `machine`."""
    return _Executor(graph, machine).run()


class _Executor:
    def __init__(self, graph: StepGraph, machine: Machine) -> None:
        self.graph, self.machine = graph, machine
        self.live = LiveStorages(graph)  # SIM-4, SIM-5
        self.ready: dict[str, list[tuple[float, int]]] = {_COMPUTE: [], _OUT: [], _IN: []}
        self.waits, self.after = self._dependencies()
        self.timeline: list[tuple[float, int]] = []
        self.busy: dict[str, list[tuple[float, float]]] = {lane: [] for lane in LANES}
        self.spans: dict[str, tuple[float, float]] = {}
        self.taken: dict[int, Touched] = {}  # swap-ins that wait for the link

    def _dependencies(self) -> tuple[list[int], list[list[int]]]:
        index = self.graph.index
        after: list[list[int]] = [[] for _ in self.graph.ops]
        waits = []
        for i, op in enumerate(self.graph.ops):
            sources = {index[producer_name(t)] for t in op.inputs} | {index[c] for c in op.control_inputs}
            if op.in_loop:  # SIM-6
                sources = {source for source in sources if source < i}
            for source in sources:
                after[source].append(i)
            waits.append(len(sources))
        return waits, after

    def run(self) -> SimulatedStep:
        for i, count in enumerate(self.waits):
            if count == 0:
                self._enqueue(i, 0.0)
        running: list[tuple[float, int, str, Touched]] = []  # (end, op, resource, storages)
        busy: set[str] = set()
        clock = 0.0
        while running or any(self.ready.values()):
            for resource, queue in self.ready.items():
                while queue and resource not in busy:
                    _, i = heapq.heappop(queue)
                    op = self.graph.ops[i]
                    seconds = self._seconds(op, resource)
                    touched = self.taken.pop(i, None) or self._begin(op, clock)
                    if seconds == 0.0:
                        self._finish(i, touched, clock)
                        continue
                    heapq.heappush(running, (clock + seconds, i, resource, touched))
                    self._note(op, resource, clock, clock + seconds)
                    busy.add(resource)
            if any(q and r not in busy for r, q in self.ready.items()):
                continue
            if not running:
                break
            clock, i, resource, touched = heapq.heappop(running)
            busy.discard(resource)
            self._finish(i, touched, clock)
        times, sizes = zip(*self.timeline, strict=True) if self.timeline else ((), ())
        lanes = {lane: tuple(pieces) for lane, pieces in self.busy.items()}
        return SimulatedStep(self.live.peak_bytes, clock, times, sizes, lanes, self.spans, tuple(self.live.changes))

    def _note(self, op: Op, resource: str, start: float, end: float) -> None:
        self.spans[op.name] = start, end
        pieces = self.busy["recompute" if resource == _COMPUTE and op.inserted else resource]
        if pieces and pieces[-1][1] == start:
            start = pieces.pop()[0]
        pieces.append((start, end))

    def _enqueue(self, i: int, clock: float) -> None:
        op = self.graph.ops[i]
        resource = _OUT if op.type == "SwapOut" else _IN if op.type == "SwapIn" else _COMPUTE  # SIM-3
        # SIM-2 first, on the links, too, since a swap-in that is read in place moves nothing; then SIM-1: the earlier op.
        first = 0.0 if self._seconds(op, resource) == 0.0 else 1.0
        if resource == _IN and first:  # SIM-4
            self.taken[i] = self._begin(op, clock)
        heapq.heappush(self.ready[resource], (first, i))

    def _seconds(self, op: Op, resource: str) -> float:
        if resource == _OUT:
            return (self.graph.tensors[op.inputs[0]].bytes or 0) / self.machine.swap_out_bytes_per_second
        if resource == _IN:
            return (op.outputs[0].bytes or 0) / self.machine.swap_in_bytes_per_second
        return op_seconds(self.graph, op, self.machine)

    def _begin(self, op: Op, clock: float) -> Touched:
        touched = self.live.begin(op)
        if touched.changes:
            self.timeline.append((clock, self.live.live_bytes + op.workspace_bytes))
        return touched

    def _finish(self, i: int, touched: Touched, clock: float) -> None:
        self.live.finish(touched)
        for j in self.after[i]:
            self.waits[j] -= 1
            if self.waits[j] == 0:
                self._enqueue(j, clock)
