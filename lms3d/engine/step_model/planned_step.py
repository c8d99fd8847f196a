"""A step as a plan runs it: when each tensor is in memory, and when it is on its way. No TensorFlow here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lms3d.engine import edit, liveness
from lms3d.engine.cost import Machine
from lms3d.engine.ir import StepGraph, producer_name
from lms3d.engine.plan import Plan, Recompute, SwapIn
from lms3d.engine.step_model.simulate import SimulatedStep, simulate

Span = tuple[float, float]
"""(start, end) in seconds of the step."""


def readers(copy: SwapIn | Recompute) -> list[str]:
    """The ops that read a copy, directly or through an identity."""
    return [*copy.consumers, *(reader for reader, _ in copy.through)]


@dataclass(frozen=True)
class PlannedStep:
    """The graph that a plan leaves of a step, and its simulation."""

    graph: StepGraph
    plan: Plan
    run: SimulatedStep

    @classmethod
    def simulated(cls, graph: StepGraph, plan: Plan, machine: Machine) -> PlannedStep:
        """The step `graph` under `plan`. Takes milliseconds."""
        edited = edit.apply(graph, plan)
        return cls(edited, plan, simulate(edited, machine))

    @cached_property
    def peak_seconds(self) -> float:
        """When the step holds the most bytes, workspaces included."""
        seconds, sizes = self._timeline
        return float(seconds[sizes.argmax()]) if len(seconds) else 0.0

    @cached_property
    def copies(self) -> dict[str, tuple[SwapIn | Recompute, ...]]:
        """The copies of each tensor that leaves."""
        found: dict[str, list[SwapIn | Recompute]] = defaultdict(list)
        made: tuple[SwapIn | Recompute, ...] = (*self.plan.swap_ins, *self.plan.recomputes)
        for copy in made:
            found[copy.tensor].append(copy)
        return {tensor: tuple(copies) for tensor, copies in found.items()}

    def lives(self, tensor: str) -> list[Span]:
        """When the original of a tensor and each copy are in memory, in order. A copy that is read in the tier never is."""
        original = self._roots.get(tensor, tensor)
        names = (original, *(copy.output for copy in self.copies.get(tensor, ())))
        return sorted(self._life(self._storages[name]) for name in names if name in self._storages)

    def raised_bytes(self, tensor: str, size_bytes: int) -> int:
        """How much higher the peak would be if a tensor that leaves stayed, and all else went as planned.

        That is the most bytes that are live while it is away, and its own, less the peak.
        """
        lives, copies = self.lives(tensor), self.copies.get(tensor, ())
        returns = [*(start for start, _ in lives[1:]), self._end(name for copy in copies for name in readers(copy))]
        most = max((self._most_bytes(left, back) for (_, left), back in zip(lives, returns, strict=False)), default=0)
        return max(0, most + size_bytes - self.run.peak_bytes) if most else 0

    def transfers(self, tensor: str) -> tuple[list[Span], list[Span]]:
        """When a swapped tensor is written to the tier, and when it is read back."""
        back = [copy.name for copy in self.copies.get(tensor, ()) if isinstance(copy, SwapIn)]
        return self._spans([self._swap_outs[tensor]] if back else []), sorted(self._spans(back))

    def recomputing(self, tensor: str) -> list[Span]:
        """When the ops run that are recomputed from a tensor, or from a copy of it."""
        original = self._storages[tensor].readers if tensor in self._storages else ()
        found = {*original, *(reader for copy in self.copies.get(tensor, ()) for reader in readers(copy))}
        return self._spans(sorted(found & self._recomputes))

    @cached_property
    def _recomputes(self) -> frozenset[str]:
        """The names of the ops that are recomputed."""
        return frozenset(copy.name for copy in self.plan.recomputes)

    @cached_property
    def _swap_outs(self) -> dict[str, str]:
        """The name of the op that writes each swapped tensor."""
        return {out.tensor: out.name for out in self.plan.swap_outs}

    def _spans(self, ops: Iterable[str]) -> list[Span]:
        """The spans of those ops that take time."""
        return [self.run.spans[name] for name in ops if name in self.run.spans]

    def _end(self, ops: Iterable[str]) -> float:
        """When the last of some ops is done."""
        return max((end for _, end in self._spans(ops)), default=0.0)

    def _life(self, store: liveness.Storage) -> Span:
        """From the start of the op that makes a storage to the end of its last reader, or of the step if it is returned."""
        start, made = self.run.spans.get(producer_name(store.root), (0.0, 0.0))
        return start, self.run.seconds if store.returned else max(made, self._end(store.readers))

    def _most_bytes(self, start: float, end: float) -> int:
        """The most bytes that are live at the events from `start` until before `end`."""
        seconds, sizes = self._timeline
        first, last = np.searchsorted(seconds, (start, end))
        return int(sizes[first:last].max(initial=0))

    @cached_property
    def _timeline(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.run.timeline_seconds), np.array(self.run.timeline_bytes, np.int64)

    @cached_property
    def _roots(self) -> dict[str, str]:
        return liveness.roots(self.graph)

    @cached_property
    def _storages(self) -> dict[str, liveness.Storage]:
        return liveness.storages(self.graph)
