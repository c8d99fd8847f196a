"""What else could have happened to each large tensor, and at what cost: kept, swapped or recomputed. No TensorFlow here.

These questions are asked of a finished plan, whichever planner made it: of the step as the plan runs it (`PlannedStep`) or, if the
plan is empty, of the step as it was traced.

ALTERNATIVE-1  Every cost is that of one return, after the tensor's longest wait: the longest time between two of its uses. Whoever
               reads a copy of it uses it, too, such as an op that the plan runs once more.
ALTERNATIVE-2  Swapping writes the tensor at the link's speed and reads it back. A mapped tensor is read in the tier, at no cost.
ALTERNATIVE-3  The links can hide as much of that as they are idle for during the wait, the tensor's own transfers left out.
ALTERNATIVE-4  Recomputing runs the tensor's op once more. A source that nobody else reads from then on has to stay until then, or
               to come back itself; the reason names it.
ALTERNATIVE-5  A kept tensor holds its bytes at the peak if it is in memory then. A tensor that leaves holds none, but would raise
               the peak if it stayed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lms3d.engine import liveness
from lms3d.engine.cost import Machine
from lms3d.engine.plan import SwapOut
from lms3d.engine.prediction import Decision, Figures
from lms3d.engine.step_model import reasons
from lms3d.engine.step_model.planned_step import PlannedStep, Span
from lms3d.engine.step_model.problem import Buffer, Problem


def decisions(
    problem: Problem, machine: Machine, figures: Figures, planned: PlannedStep | None, *, rule: str = ""
) -> tuple[Decision, ...]:
    """The decision on each large tensor of `problem`, and on any other tensor that the plan swaps.

    figures: the plan's. planned: None if the plan is empty. rule: how the planner decides, if not by costs.
    """
    return _Decisions(problem, machine, figures, planned, rule).all()


class _Wait(NamedTuple):
    """The longest wait of a buffer (ALTERNATIVE-1): its seconds in the step, and the anchor that ends it."""

    start: float = 0.0
    end: float = 0.0
    until: int = 0


class _Idle(NamedTuple):
    """Seconds of a wait in which the link out, and the link back, have nothing else to do."""

    out: float
    back: float


class _Decisions:
    def __init__(
        self, problem: Problem, machine: Machine, figures: Figures, planned: PlannedStep | None, rule: str
    ) -> None:
        self.problem, self.machine, self.figures, self.planned, self.rule = problem, machine, figures, planned, rule
        self.swapped_in = Counter(copy.tensor for copy in planned.plan.swap_ins) if planned else Counter[str]()
        self.recomputed = Counter(copy.tensor for copy in planned.plan.recomputes) if planned else Counter[str]()

    def all(self) -> tuple[Decision, ...]:
        """Those on the buffers of the problem, in their order, and those on what else is swapped."""
        buffers = self.problem.buffers
        waits = [self._longest_wait(buffer) for buffer in buffers]
        idle = self._idle_seconds(waits)
        large = [self._on_buffer(*each) for each in zip(buffers, waits, idle, strict=True)]
        known = {buffer.root for buffer in buffers}
        swapped = self.planned.plan.swap_outs if self.planned else ()
        return *large, *(self._on_another(out) for out in swapped if out.tensor not in known)

    def _on_buffer(self, buffer: Buffer, wait: _Wait, idle: _Idle) -> Decision:
        decided = self._decided(buffer.root, buffer.bytes)
        out, back = self._transfer_seconds(buffer.bytes, mapped=buffer.mapped)
        hidden = min(min(out, idle.out) + min(back, idle.back), wait.end - wait.start)  # ALTERNATIVE-3
        swappable = buffer.swappable or decided.action in ("swap", "both")
        recomputable = buffer.recomputable or decided.action in ("recompute", "both")
        weighed = replace(
            decided,
            swap_seconds=out + back if swappable else None,
            hidden_seconds=hidden if swappable else None,
            recompute_seconds=buffer.seconds if recomputable else None,
            idle_link_seconds=idle.out if buffer.mapped else min(idle),
            peak_bytes=self._peak_bytes(decided),
        )
        sources = self._idle_sources(buffer, wait) if recomputable else []
        why = reasons.of_buffer(
            weighed, buffer, self.problem, sources=sources, peak_at=self.figures.peak_at, rule=self.rule
        )
        view = self._swapped_views.get(buffer.root)
        return replace(weighed, reason=f"{why}; its view {view} is swapped" if view else why)

    @cached_property
    def _swapped_views(self) -> dict[str, str]:
        """Tensor -> a view of it that the plan swaps, as TFLMS does: with that the tensor's memory leaves, too."""
        root_of = liveness.roots(self.problem.graph)
        swapped = [out.tensor for out in self.planned.plan.swap_outs] if self.planned else []
        return {root_of[name]: name for name in swapped if root_of.get(name, name) != name}

    def _on_another(self, swap_out: SwapOut) -> Decision:
        """A swapped tensor that is no buffer of the problem: TFLMS also swaps small ones, and views."""
        decided = self._decided(swap_out.tensor, swap_out.bytes)
        seconds = self._transfer_seconds(swap_out.bytes, mapped=self.machine.mapped)
        weighed = replace(decided, swap_seconds=sum(seconds), peak_bytes=self._peak_bytes(decided))
        return replace(weighed, reason=reasons.of_another(weighed, self.rule))

    def _decided(self, tensor: str, size_bytes: int) -> Decision:
        """The decision alone."""
        swapped_in, recomputed = self.swapped_in[tensor], self.recomputed[tensor]
        action = (
            "both" if swapped_in and recomputed else "swap" if swapped_in else "recompute" if recomputed else "keep"
        )
        return Decision(tensor=tensor, bytes=size_bytes, action=action, copies=swapped_in + recomputed)

    def _transfer_seconds(self, size_bytes: int, *, mapped: bool) -> tuple[float, float]:
        """Seconds of the link out and of the link back (ALTERNATIVE-2)."""
        back = 0.0 if mapped else size_bytes / self.machine.swap_in_bytes_per_second
        return size_bytes / self.machine.swap_out_bytes_per_second, back

    def _peak_bytes(self, decided: Decision) -> int:
        """ALTERNATIVE-5."""
        if decided.action != "keep" and self.planned is not None:
            return self.planned.raised_bytes(decided.tensor, decided.bytes)
        return decided.bytes if self._is_live_at_peak(decided.tensor) else 0

    def _is_live_at_peak(self, tensor: str) -> bool:
        if self.figures.peak_tensors or self.planned is None:
            return tensor in self._peak_tensors
        return any(start <= self.planned.peak_seconds < end for start, end in self.planned.lives(tensor))

    @cached_property
    def _peak_tensors(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.figures.peak_tensors)

    def _idle_sources(self, buffer: Buffer, wait: _Wait) -> list[Buffer]:
        """The sources of a buffer that would stay for it alone (ALTERNATIVE-4)."""
        sources = (self.problem.buffers[parent] for parent in buffer.parents)
        return [source for source in sources if not source.returned and max(source.reads, default=0) < wait.until]

    @cached_property
    def _anchor_spans(self) -> list[Span]:
        """When each anchor runs. One that takes no time runs when the anchor before it is done."""
        if self.planned is None:
            begins = self.problem.begins.tolist()
            return list(pairwise(begins))
        spans, clock = list[Span](), 0.0
        for name in self.problem.anchors:
            spans.append(self.planned.run.spans.get(name, (clock, clock)))
            clock = spans[-1][1]
        return spans

    def _longest_wait(self, buffer: Buffer) -> _Wait:
        longest, free = _Wait(), self._anchor_spans[buffer.defined][1]
        # What is recomputed just before the read is part of no alternative.
        own = buffer.seconds if self.recomputed[buffer.root] else 0.0
        for (start, end), until in self._uses(buffer):
            if start - own - free > longest.end - longest.start:
                longest = _Wait(free, start - own, until)
            free = max(free, end)
        return longest

    def _uses(self, buffer: Buffer) -> list[tuple[Span, int]]:
        """When a buffer is read, in order, and the anchor that reads it, or that comes after the copied op that does."""
        uses = [(self._anchor_spans[read], read) for read in buffer.reads]
        if self.planned is None:
            return uses
        copied = [(span, self._anchor_after(span)) for span in self.planned.recomputing(buffer.root)]
        return sorted([*uses, *copied]) if copied else uses

    def _anchor_after(self, span: Span) -> int:
        at = bisect_left(self._anchors_by_start, (span[1],))
        return self._anchors_by_start[at][1] if at < len(self._anchors_by_start) else len(self.problem.anchors)

    @cached_property
    def _anchors_by_start(self) -> list[tuple[float, int]]:
        return sorted((start, i) for i, (start, _) in enumerate(self._anchor_spans))

    def _idle_seconds(self, waits: Sequence[_Wait]) -> list[_Idle]:
        """Per buffer, how long each link is idle during its wait."""
        starts, ends = (np.array([wait[i] for wait in waits]) for i in (0, 1))
        idle = ends - starts
        if self.planned is None:
            return [_Idle(seconds, seconds) for seconds in idle.tolist()]
        busy = self.planned.run.busy
        out, back = (idle - _common_seconds(busy[lane], starts, ends) for lane in ("swap out", "swap in"))
        for i, buffer in enumerate(self.problem.buffers):
            if self.swapped_in[buffer.root]:  # ALTERNATIVE-3
                own_out, own_back = self.planned.transfers(buffer.root)
                this = slice(i, i + 1)
                out[this] += _common_seconds(own_out, starts[this], ends[this])
                back[this] += _common_seconds(own_back, starts[this], ends[this])
        return [_Idle(*each) for each in zip(out.clip(0).tolist(), back.clip(0).tolist(), strict=True)]


def _common_seconds(pieces: Sequence[Span], starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How many seconds of `pieces`, which are in order and apart, lie between each start and end. Same shape as these."""
    if not pieces:
        return np.zeros(starts.shape)
    edges = np.array(pieces).reshape(-1)
    seconds = np.diff(edges)
    seconds[1::2] = 0.0  # between two pieces
    done = np.concatenate([[0.0], seconds.cumsum()])
    return np.interp(ends, edges, done) - np.interp(starts, edges, done)
