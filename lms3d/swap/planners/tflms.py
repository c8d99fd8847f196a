"""TFLMS's own way to a plan: swap every tensor whose consumer is far away, counted in levels. No TensorFlow here.

T. D. Le et al., "TFLMS: Large Model Support in TensorFlow by Graph Rewriting", arXiv:1807.02037; the parameters are those
of version 2. Rules, in the order in which they are applied:
 1. An edge is far when level(consumer) - level(source) > swapout_threshold.
 2. Never swapped: rank 0 or 1, unknown shapes, loop bodies, ops and scopes that are excluded, and tensors that live outside
    of the step (weights, constants, arguments), because swapping those saves nothing. Nor edges that must stay
    direct (`ir.paired`).
 3. One swap-out per tensor. Near consumers keep using the original.
 4. Far consumers, sorted by level, share a swap-in while the gap to the previous one is at most swapin_groupby.
 5. The first of a group (`dest`) times the swap-in: the trigger is an op at a level from L(dest) - ahead - 1 down to
    max(L(dest) - ahead - 10, L(source) + 1) that reaches dest through data edges. None: as sync mode 2.
 6. sync_mode 1: near consumers wait for the swap-out. 2: a swap-in waits for the other inputs of dest. 3: both.
 7. serialization: the ops of the named levels are chained; by size: those of levels that move more than so many GiB.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lms3d.errors import DoesNotFit, InputError
from lms3d.swap import edit
from lms3d.swap.cost import Machine
from lms3d.swap.ir import RESIDENT_TYPES, Op, StepGraph, Tensor, paired, producer_name
from lms3d.swap.liveness import lasting, roots, storages
from lms3d.swap.plan import Plan, SwapIn, SwapOut
from lms3d.swap.simulate import simulate

TRIGGER_LEVELS = 10  # how many levels are searched for a trigger
SAFETY = 0.94  # a pool cannot be filled to the last byte


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """TFLMS's parameters; None means: tune it against the memory limit.

    serialization: levels as ints or slices ("3:5", "7:", "::2"). serialization_by_size: GiB, 0 is off.
    n_tensors: swap only the first N candidates (0: none; None: all). include/exclude: name scopes (prefixes) and op types,
    for sources and for consumers; an empty include means everything.
    """

    swapout_threshold: int | None = None
    swapin_ahead: int | None = None
    swapin_groupby: int | None = None
    sync_mode: int | None = None
    serialization: tuple[int | str, ...] = ()
    serialization_by_size: float = 0.0
    n_tensors: int | None = None
    include_source_scopes: tuple[str, ...] = ()
    exclude_source_scopes: tuple[str, ...] = ()
    include_source_types: tuple[str, ...] = ()
    exclude_source_types: tuple[str, ...] = ()
    include_consumer_scopes: tuple[str, ...] = ()
    exclude_consumer_scopes: tuple[str, ...] = ()
    include_consumer_types: tuple[str, ...] = ()
    exclude_consumer_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("swapout_threshold", "swapin_ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value}: expected 1 or more; leave it out to have it tuned")
        if self.sync_mode not in (None, 0, 1, 2, 3):
            raise InputError(f"sync_mode={self.sync_mode}: expected 0, 1, 2 or 3")
        if self.serialization_by_size < 0:
            raise InputError(
                f"serialization_by_size={self.serialization_by_size}: expected a size in GiB, or 0 for off"
            )
        if self.n_tensors is not None and self.n_tensors < 0:
            raise InputError(f"n_tensors={self.n_tensors}: expected 0 or more; leave it out for all")
        for level in self.serialization:
            _level_slice(level)

    @property
    def fixed(self) -> bool:
        """True where nothing is left to tune."""
        return None not in (self.swapout_threshold, self.swapin_ahead, self.swapin_groupby, self.sync_mode)


def _level_slice(level: int | str) -> slice:
    """3 -> slice(3, 4); "3:5" -> slice(3, 5). InputError for anything else."""
    if isinstance(level, int):
        return slice(level, level + 1 or None)  # -1 is the highest level
    number = r"\s*(-?\d+)?\s*"
    found = re.fullmatch(f"{number}(:{number})?(:{number})?", level)
    numbers = [int(n) if n else None for n in found.group(1, 3, 5)] if found else []
    if numbers == [None, None, None] or not numbers or numbers[2] == 0:
        raise InputError(f"serialization level {level!r}: expected a number or a slice such as 3:5")
    return slice(*numbers) if ":" in level else _level_slice(int(level))


def make(graph: StepGraph, parameters: Parameters, limit_bytes: int, machine: Machine) -> Plan:
    """The plan for these parameters; those that are None are tuned so that the step fits in `limit_bytes`.

    Raises DoesNotFit where nothing fits (TFLMS: ValueError).
    """
    return (
        build(graph, parameters, mapped=machine.mapped)
        if parameters.fixed
        else autotune(graph, parameters, limit_bytes, machine)
    )


def build(graph: StepGraph, parameters: Parameters, *, mapped: bool = False) -> Plan:
    """The plan for fully chosen parameters: rules 1 to 7. mapped: see `cost.Machine`."""
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
        """Rules 1 to 3: (tensor, source, far consumers), in graph order."""
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

    def _groups(self, far: list[Op]) -> list[list[Op]]:  # rule 4
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
        if self.parameters.sync_mode in (2, 3):  # rule 6
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

    def _trigger(self, source: Op, dest: Op) -> str | None:  # rule 5
        top = self.levels[dest.name] - self.ahead - 1
        bottom = max(self.levels[dest.name] - self.ahead - TRIGGER_LEVELS, self.levels[source.name] + 1)
        ancestors = self._ancestors(dest, bottom)
        for level in range(top, bottom - 1, -1):
            for op in self.by_level[level]:
                if op.name in ancestors and op.on_device:
                    return op.name
        return None

    def _ancestors(self, dest: Op, bottom: int) -> set[str]:
        """Ops at level `bottom` or above that reach `dest` through data edges."""
        found: set[str] = set()
        waiting = [dest]
        while waiting:
            for name in {producer_name(t) for t in waiting.pop().inputs}:
                if name not in found and self.levels.get(name, -1) >= bottom:
                    found.add(name)
                    waiting.append(self.graph.by_name[name])
        return found

    def _other_inputs(self, tensor: Tensor, dest: Op) -> tuple[str, ...]:
        """The ops behind dest's other data inputs, the latest last; resident ones would not hold anything back."""
        names = {producer_name(t) for t in dest.inputs if t != tensor.name}
        usable = [n for n in names if n in self.levels and self.graph.by_name[n].type not in RESIDENT_TYPES]
        source = producer_name(tensor.name)
        return tuple(sorted((n for n in usable if n != source), key=lambda n: (self.levels[n], self.graph.index[n])))

    def _waiters(self, tensor: Tensor, far: list[Op]) -> tuple[str, ...]:  # rule 6
        if self.parameters.sync_mode not in (1, 3):
            return ()
        away = {op.name for op in far}
        return tuple(n for n in self.graph.consumers[tensor.name] if n not in away and n in self.levels)

    def _serialise(self) -> None:  # rule 7
        highest = max(self.by_level, default=-1)
        chosen: set[int] = set()
        for level in self.parameters.serialization:
            chosen.update(range(highest + 1)[_level_slice(level)])
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


def autotune(graph: StepGraph, parameters: Parameters, limit_bytes: int, machine: Machine) -> Plan:
    """TFLMS's search, against a simulator that counts what TFLMS's left out: slots, batches, workspace, transfer times.

    (1) It fits as it is: the empty plan. (2) At threshold 1, raise sync_mode until it fits. (3) The largest threshold that
    fits, then the largest ahead, by binary search. (4) groupby = all levels if that fits, else the largest that does.
    """
    budget = int(limit_bytes * SAFETY)
    start = Parameters(
        **{
            **{f: getattr(parameters, f) for f in parameters.__dataclass_fields__},
            "swapout_threshold": parameters.swapout_threshold or 1,
            "swapin_ahead": parameters.swapin_ahead or 1,
            "swapin_groupby": 0 if parameters.swapin_groupby is None else parameters.swapin_groupby,
            "sync_mode": parameters.sync_mode or 0,
        }
    )

    def fits(chosen: Parameters) -> bool:
        return simulate(edit.apply(graph, build(graph, chosen, mapped=machine.mapped)), machine).peak_bytes <= budget

    if parameters.swapout_threshold is None and simulate(graph, machine).peak_bytes <= budget:
        return Plan()
    modes = range(4) if parameters.sync_mode is None else [parameters.sync_mode]
    mode = next((m for m in modes if fits(replace(start, sync_mode=m))), None)
    if mode is None:
        raise DoesNotFit(
            f"TFLMS's parameters cannot make the step fit in {limit_bytes / (1 << 20):,.0f} MiB; "
            "raise --memory-limit or leave the TFLMS parameters out (the default planner also recomputes)"
        )
    chosen = replace(start, sync_mode=mode)
    highest = max(graph.levels.values(), default=1)
    if parameters.swapout_threshold is None:
        chosen = replace(
            chosen, swapout_threshold=_largest(1, highest, lambda n: fits(replace(chosen, swapout_threshold=n)))
        )
    if parameters.swapin_ahead is None and mode in (0, 1):
        chosen = replace(chosen, swapin_ahead=_largest(1, highest, lambda n: fits(replace(chosen, swapin_ahead=n))))
    if parameters.swapin_groupby is None:
        everything = replace(chosen, swapin_groupby=highest)
        best = highest if fits(everything) else _largest(0, highest, lambda n: fits(replace(chosen, swapin_groupby=n)))
        chosen = replace(chosen, swapin_groupby=best)
    return build(graph, chosen, mapped=machine.mapped)


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest n in low..high that fits, if what fits is an interval that starts at `low`."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
