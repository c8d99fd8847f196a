"""A schedule -> the plan that makes TensorFlow's executor follow it. No TensorFlow here.

EMIT-1  Every swapped buffer has one swap-out. The op that takes memory first at the event that counts on its memory waits for it.
EMIT-2  Every further copy is a swap-in or a recomputed op. The event before its place in the schedule triggers it.
EMIT-3  A reader that sees the buffer through a reshape gets a copy of the reshape; through an identity it reads the copy itself.
EMIT-4  Memory changes hands in the planned order, too, since that decides which piece of a pool each tensor gets. A swapped
        buffer is freed just before the event that waits for its swap-out. The swap-ins that start before an event take
        their memory one after the other, and the event follows.
EMIT-5  Events run in the planned order: a control edge leads from each to the next, unless a data edge does.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from lms3d.engine import edit
from lms3d.engine.ir import StepGraph, producer_name
from lms3d.engine.liveness import aliased_input, roots
from lms3d.engine.plan import Plan, Recompute, SwapIn, SwapOut
from lms3d.engine.step_model.decisions import Mode
from lms3d.engine.step_model.fit import Solution
from lms3d.engine.step_model.problem import Event
from lms3d.engine.step_model.schedule import Copy

_IDENTITIES = frozenset({"Identity", "IdentityN", "StopGradient", "PreventGradient", "EnsureShape"})


Edges = tuple[tuple[str, str], ...]
"""(reader, tensor that it reads)."""


class _Emitter:
    def __init__(self, solution: Solution) -> None:
        self.problem, self.schedule = solution.problem, solution.schedule
        self.graph = self.problem.graph
        self.root_of = roots(self.graph)
        self.copies_of: dict[str, int] = defaultdict(int)  # op -> recomputed copies so far
        self.event_of: dict[tuple[int, int], Recompute] = {}
        self.names: list[str] = []
        self.swap_outs: list[SwapOut] = []
        self.swap_ins: list[SwapIn] = []
        self.recomputes: list[Recompute] = []
        self.started_before: dict[int, list[int]] = defaultdict(list)  # event -> indices of swap-ins

    def plan(self) -> Plan:
        self._name_events()
        for copy in self.schedule.copies:
            if copy.number:
                self._emit_copy(copy)
        for buffer, event in self.schedule.release.items():  # EMIT-1
            swapped, until = self.problem.buffers[buffer], (self.names[event - 1],)
            waiters = (self._first_at(event),)
            self.swap_outs.append(SwapOut(tensor=swapped.root, bytes=swapped.bytes, waiters=waiters, until=until))
        written = {s.tensor for s in self.swap_outs}
        for back in self.swap_ins:
            if back.tensor not in written:  # still being written at the end of the step: no op waits for it
                written.add(back.tensor)
                self.swap_outs.append(SwapOut(tensor=back.tensor, bytes=self.graph.tensors[back.tensor].bytes or 0))
        self._let_follow()
        kept = {s.tensor for s in self.swap_ins}
        plan = Plan(
            swap_outs=tuple(s for s in self.swap_outs if s.tensor in kept),
            swap_ins=tuple(self.swap_ins),
            recomputes=tuple(self.recomputes),
            planner="hybrid",
        )
        return self._ordered(plan)

    def _name_events(self) -> None:
        """Names the op of each event; recomputed ones get their inserted names."""
        numbers = {(c.start, c.buffer): c.number for c in self.schedule.copies if c.mode is Mode.RECOMPUTE}
        for i, event in enumerate(self.schedule.events):
            if event.is_anchor:
                self.names.append(self.problem.anchors[event.anchor])
                continue
            root = self.problem.buffers[event.buffer].root
            recompute = self._recompute(producer_name(root), root)
            self.names.append(recompute.name)
            self.event_of[event.buffer, numbers[i, event.buffer]] = recompute

    def _recompute(self, op: str, tensor: str) -> Recompute:
        """A new recomputed copy of `op`, with the next free number and no readers yet."""
        self.copies_of[op] += 1
        return Recompute(op=op, tensor=tensor, copy=self.copies_of[op] - 1, consumers=(), triggers=())

    def _emit_copy(self, copy: Copy) -> None:  # EMIT-2
        root = self.problem.buffers[copy.buffer].root
        consumers, through = self._consumers(root, copy.readers)
        triggers = (self.names[copy.start - 1],) if copy.start else ()
        if copy.mode is Mode.SWAP:
            swap_in = SwapIn(
                tensor=root,
                copy=copy.number - 1,
                consumers=consumers,
                triggers=triggers,
                through=through,
                mapped=self.problem.buffers[copy.buffer].mapped,
            )
            if copy.bytes:
                self.started_before[copy.start].append(len(self.swap_ins))
            self.swap_ins.append(swap_in)
            return
        recompute = replace(self.event_of[copy.buffer, copy.number], tensor=root)
        self.recomputes.append(replace(recompute, consumers=consumers, triggers=triggers, through=through))

    def _first_at(self, event: int) -> str:
        """The op that takes memory first at an event: a swap-in that starts before it, else its own op (EMIT-4)."""
        started = self.started_before.get(event)
        return self.swap_ins[started[0]].name if started else self.names[event]

    def _let_follow(self) -> None:  # EMIT-4
        for event, started in self.started_before.items():
            names = [self.swap_ins[i].name for i in started]
            for i, follower in zip(started, [*names[1:], self.names[event]], strict=True):
                self.swap_ins[i] = replace(self.swap_ins[i], followers=(follower,))

    def _consumers(self, root: str, readers: Sequence[Event]) -> tuple[tuple[str, ...], Edges]:
        """The readers of the copy of `root`, direct ones and those through identities; copies reshapes on the way (EMIT-3)."""
        reads: dict[str, dict[tuple[str, str], None]] = {root: {}}  # root or reshaped tensor -> edges
        for reader in readers:
            name, op = self._reader(reader)
            for tensor in dict.fromkeys(self.graph.by_name[op].inputs):
                if self.root_of.get(tensor) == root:
                    self._route(tensor, name, reads)
        reshapes = {t: self._recompute(producer_name(t), t) for t in reads if t != root}
        by_op = {reshape.op: reshape.name for reshape in reshapes.values()}

        def split(tensor: str) -> tuple[tuple[str, ...], Edges]:
            renamed = [(by_op.get(reader, reader), name) for reader, name in reads[tensor]]
            direct = tuple(reader for reader, name in renamed if name == tensor)
            return direct, tuple((reader, name) for reader, name in renamed if name != tensor)

        for tensor, reshape in reshapes.items():
            consumers, through = split(tensor)
            self.recomputes.append(replace(reshape, consumers=consumers, through=through))
        return split(root)

    def _route(self, tensor: str, reader: str, reads: dict[str, dict[tuple[str, str], None]]) -> None:
        """Walk from the tensor that `reader` reads up to the root, noting each reshape to copy."""
        name = tensor
        while True:
            op = self.graph.by_name[producer_name(tensor)]
            source = aliased_input(op, int(tensor.rpartition(":")[2]))
            if source is not None and op.type in _IDENTITIES:
                tensor = source
                continue
            known = tensor in reads
            reads.setdefault(tensor, {})[reader, name] = None
            if source is None or known:
                return
            reader, name, tensor = op.name, source, source

    def _reader(self, reader: Event) -> tuple[str, str]:
        """(name in the rewritten graph, original op) of a reader."""
        if reader.is_anchor:
            name = self.problem.anchors[reader.anchor]
            return name, name
        event = self.schedule.events.index(reader)
        return self.names[event], producer_name(self.problem.buffers[reader.buffer].root)

    def _ordered(self, plan: Plan) -> Plan:  # EMIT-5
        edited = edit.apply(self.graph, plan)
        pairs = itertools.pairwise(self.names)
        edges = tuple((before, after) for before, after in pairs if before not in _data_sources(edited, after))
        return replace(plan, control_edges=edges)


def _data_sources(graph: StepGraph, name: str) -> set[str]:
    """The ops that `name` reads from, through reshapes and identities, and its control inputs."""
    sources: set[str] = set(graph.by_name[name].control_inputs)
    waiting = [producer_name(t) for t in graph.by_name[name].inputs]
    while waiting:
        source = waiting.pop()
        sources.add(source)
        op = graph.by_name[source]
        if op.shares_input:
            waiting += [producer_name(t) for t in op.inputs[:1]]
    return sources


def emit(solution: Solution) -> Plan:
    """The plan of a solution: which nodes to insert, who reads them, and the order of the large ops."""
    return _Emitter(solution).plan()
