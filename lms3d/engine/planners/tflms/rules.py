"""TFLMS's rules: swap every tensor whose consumer is far away, counted in levels. No TensorFlow here.

T. D. Le et al., "TFLMS: Large Model Support in TensorFlow by Graph Rewriting", arXiv:1807.02037, with the parameters
of version 2. Rules, in the order in which they apply:
- TFLMS-1: An edge is far when level(consumer) - level(source) > swapout_threshold.
- TFLMS-2: Never swapped: rank 0 or 1, unknown shapes, loop bodies, ops and scopes that are excluded, and tensors that live outside
    of the step (weights, constants, arguments), because swapping those saves nothing. Edges that must stay direct (`ir.paired`)
    are left alone, too.
- TFLMS-3: One swap-out per tensor. Near consumers keep using the original.
- TFLMS-4: Far consumers, sorted by level, share a swap-in while the gap to the previous one is at most swapin_groupby.
- TFLMS-5: The first of a group (`dest`) times the swap-in: the trigger is an op at a level from L(dest) - ahead - 1 down to
    max(L(dest) - ahead - 10, L(source) + 1) that reaches dest through data edges. If there is none: as sync mode 2.
- TFLMS-6: sync_mode 1: near consumers wait for the swap-out. 2: a swap-in waits for the other inputs of dest. 3: both.
- TFLMS-7: serialization: the ops of the named levels are chained; by size: the ops of levels that move more than the given GiB.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from lms3d.engine import tuning
from lms3d.engine.ir import RESIDENT_TYPES, Op, StepGraph, Tensor, paired, producer_name
from lms3d.engine.liveness import lasting, roots, storages
from lms3d.engine.plan import Plan, SwapIn, SwapOut
from lms3d.engine.planners.tflms.parameters import Parameters, level_slice


def build(graph: StepGraph, parameters: Parameters, *, mapped: bool = False) -> Plan:
    """The plan for fully chosen parameters: TFLMS-1 to TFLMS-7. mapped: see `cost.Machine`."""
    return _Builder(graph, parameters, mapped).plan()


class _Builder:
    def __init__(self, graph: StepGraph, parameters: Parameters, mapped: bool) -> None:
        threshold, ahead, groupby = parameters.swapout_threshold, parameters.swapin_ahead, parameters.swapin_groupby
        if threshold is None or ahead is None or groupby is None or parameters.sync_mode is None:
            raise ValueError("parameters that are None must be tuned first")
        self.threshold, self.ahead, self.groupby = threshold, ahead, groupby
        self.graph, self.parameters, self.levels = graph, parameters, graph.levels
        self.by_level: dict[int, list[Op]] = defaultdict(list)
        for op in graph.ops:
            if op.name in self.levels:
                self.by_level[self.levels[op.name]].append(op)
        self.edges: list[tuple[str, str]] = []
        self.root_of = roots(graph)
        self.mapped, self.lasting = mapped, lasting(graph)

    def plan(self) -> Plan:
        outs, backs = [], []
        for tensor, source, far in self._candidates():
            out = SwapOut(tensor=tensor.name, bytes=tensor.bytes or 0, waiters=self._waiters(tensor, far))
            groups = self._groups(far)
            backs += [self._swap_in(tensor, source, k, group) for k, group in enumerate(groups)]
            outs.append(out)
        self._serialise()
        names = ("swapout_threshold", "swapin_ahead", "swapin_groupby", "sync_mode")
        chosen: dict[str, Any] = {name: getattr(self.parameters, name) for name in names}
        return Plan(
            swap_outs=tuple(outs),
            swap_ins=tuple(backs),
            control_edges=tuple(self.edges),
            planner="tflms",
            parameters=chosen,
        )

    def _candidates(self) -> Iterator[tuple[Tensor, Op, list[Op]]]:
        """(tensor, source, far consumers), in graph order (TFLMS-1 to TFLMS-3)."""
        left = self.parameters.n_tensors
        resident = {root for root, s in storages(self.graph).items() if s.resident}
        for source in self.graph.ops:
            if not self._source_allowed(source):
                continue
            for tensor in source.outputs:
                if not tensor.bytes or tensor.rank is None or tensor.rank < 2:
                    continue
                if self.root_of[tensor.name] in resident:
                    continue
                far = self._far(tensor, source)
                if far and left != 0:
                    left = None if left is None else left - 1
                    yield tensor, source, far

    def _source_allowed(self, op: Op) -> bool:
        p = self.parameters
        usable = op.name in self.levels and op.on_device and op.type not in RESIDENT_TYPES
        return usable and _allowed(
            op, p.include_source_scopes, p.exclude_source_scopes, p.include_source_types, p.exclude_source_types
        )

    def _far(self, tensor: Tensor, source: Op) -> list[Op]:
        p = self.parameters
        far = []
        for name in self.graph.consumers.get(tensor.name, ()):
            consumer = self.graph.by_name[name]
            if name not in self.levels or not consumer.on_device or paired(source, consumer):
                continue
            distance = self.levels[name] - self.levels[source.name]
            if distance > self.threshold and _allowed(
                consumer,
                p.include_consumer_scopes,
                p.exclude_consumer_scopes,
                p.include_consumer_types,
                p.exclude_consumer_types,
            ):
                far.append(consumer)
        return sorted(far, key=lambda op: (self.levels[op.name], self.graph.index[op.name]))

    def _groups(self, far: list[Op]) -> list[list[Op]]:  # TFLMS-4
        groups = [[far[0]]]
        for op in far[1:]:
            gap = self.levels[op.name] - self.levels[groups[-1][-1].name]
            if gap <= self.groupby and self.groupby > 0:
                groups[-1].append(op)
            else:
                groups.append([op])
        return groups

    def _swap_in(self, tensor: Tensor, source: Op, number: int, group: list[Op]) -> SwapIn:
        dest = group[0]
        if self.parameters.sync_mode in (2, 3):  # TFLMS-6
            triggers = self._other_inputs(tensor, dest)
        else:
            trigger = self._trigger(source, dest)
            triggers = (trigger,) if trigger else self._other_inputs(tensor, dest)[-1:]
        return SwapIn(
            tensor=tensor.name,
            copy=number,
            consumers=tuple(op.name for op in group),
            triggers=triggers,
            mapped=self.mapped and self.root_of[tensor.name] not in self.lasting,
        )

    def _trigger(self, source: Op, dest: Op) -> str | None:  # TFLMS-5
        top = self.levels[dest.name] - self.ahead - 1
        bottom = max(self.levels[dest.name] - self.ahead - tuning.TRIGGER_LEVELS, self.levels[source.name] + 1)
        ancestors = self._ancestors(dest, bottom)
        for level in range(top, bottom - 1, -1):
            for op in self.by_level[level]:
                if op.name in ancestors and op.on_device:
                    return op.name
        return None

    def _ancestors(self, dest: Op, bottom: int) -> set[str]:
        """The ops at level `bottom` or above that reach `dest` through data edges."""
        ancestors: set[str] = set()
        waiting = [dest]
        while waiting:
            for name in {producer_name(t) for t in waiting.pop().inputs}:
                if name not in ancestors and self.levels.get(name, -1) >= bottom:
                    ancestors.add(name)
                    waiting.append(self.graph.by_name[name])
        return ancestors

    def _other_inputs(self, tensor: Tensor, dest: Op) -> tuple[str, ...]:
        """The ops behind the other data inputs of `dest`, the latest last. Resident ones would hold nothing back."""
        names = {producer_name(t) for t in dest.inputs if t != tensor.name}
        usable = [n for n in names if n in self.levels and self.graph.by_name[n].type not in RESIDENT_TYPES]
        source = producer_name(tensor.name)
        return tuple(sorted((n for n in usable if n != source), key=lambda n: (self.levels[n], self.graph.index[n])))

    def _waiters(self, tensor: Tensor, far: list[Op]) -> tuple[str, ...]:  # TFLMS-6
        if self.parameters.sync_mode not in (1, 3):
            return ()
        away = {op.name for op in far}
        return tuple(n for n in self.graph.consumers[tensor.name] if n not in away and n in self.levels)

    def _serialise(self) -> None:  # TFLMS-7
        highest = max(self.by_level, default=-1)
        chosen: set[int] = set()
        for level in self.parameters.serialization:
            chosen.update(range(highest + 1)[level_slice(level)])
        for level, ops in self.by_level.items():
            if level in chosen or self._level_bytes(ops) > self.parameters.serialization_by_size * (1 << 30) > 0:
                chain = [op.name for op in ops if op.type not in RESIDENT_TYPES]
                self.edges += itertools.pairwise(chain)

    def _level_bytes(self, ops: Iterable[Op]) -> int:
        return sum(
            (self.graph.tensors[t].bytes or 0) for op in ops for t in (*op.inputs, *(o.name for o in op.outputs))
        )


def _allowed(
    op: Op, scopes: tuple[str, ...], not_scopes: tuple[str, ...], types: tuple[str, ...], not_types: tuple[str, ...]
) -> bool:
    if op.type in not_types or any(op.name.startswith(s) for s in not_scopes):
        return False
    return (not types or op.type in types) and (not scopes or any(op.name.startswith(s) for s in scopes))
